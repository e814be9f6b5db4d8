"""Judge of a kv_manager: makes its calls in the grammar of the contract, owns the KV memory, checks the laws.

The rules are those of docs/kv_manager.md. The judge accepts any placement and any policy. A hit is judged when it is
read, in the forward that reads it (rule 2). Slots are asked for again at every forward; between a reservation and its
forward no KV is read (rule 3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import require
from kvlockstep.models.kv_manager.goals import notice_hit, notice_prompt
from kvlockstep.models.kv_manager.loading import LoadingOperations
from kvlockstep.models.requests.adapter import answered
from kvlockstep.models.requests.answers import DONE, REFUSED, Answer, released_text
from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.request import Memory, Request, accepted_of
from kvlockstep.properties.kv_manager.listener import Hit
from kvlockstep.properties.law import ERROR_CONTRACT, counted
from kvlockstep.reference.kv.transfers import Fetching, Loading
from kvlockstep.reference.kv_manager.traits import Traits


class ManagerJudge(LoadingOperations):
    """The operations of a trace: each makes calls of the manager, checks what follows, and returns an Answer.

    An operation raises Divergence if a law does not hold, and NotEnabled, with nothing changed, if the grammar forbids
    it now. `avail` is what the manager said after the last operation, None where a step goes on and nobody asked.
    """

    _call = staticmethod(answered)

    def __init__(
        self,
        adapter: Any,
        memory: Callable[[Any, Traits, Counter[str]], Memory],
        ask: str = "avail",
        checks: Checks | None = None,
    ) -> None:
        super().__init__(adapter, memory, ask, checks)
        self._answer = DONE
        self.prepare()
        self.settle()

    @property
    def so_far(self) -> str:
        """The answer of the last operation as text, up to the failure if it failed."""
        said = "" if self._answer is DONE else str(self._answer)
        return " ".join(filter(None, (said, released_text(self.occupancy.freed))))

    def begin(self) -> None:
        """Begins an operation, which has no answer yet."""
        self.avail = None
        self._answer = DONE
        self.occupancy.freed = set()

    def admit(self, name: str, tokens: Sequence[int], extra_key: int | None, n: int) -> Answer:
        """A new request asks for admission with a first chunk of `n` tokens."""
        require(name not in self.used_names and (extra_key is None or self.traits.extra_key))
        self.require_admissible(tokens, n)
        self.used_names.add(name)
        request = Request(name, list(tokens), extra_key)
        others = [self.live[s] for s in self.scheduled if self.live[s].admitted]
        notice_prompt(self.goals_met, request, others, self.traits.block_size)
        return self._admit(request, n)

    def resume(self, name: str, n: int) -> Answer:
        """A preempted request comes back with all the tokens that it knows."""
        require(name in self.preempted)
        request = self.preempted[name]
        self.require_admissible(request.tokens, n)
        answer = self._admit(Request(name, request.tokens, request.extra_key), n)
        if not answer.refused and name not in self.fetching:
            del self.preempted[name]
            self.goals_met["resume"] += 1
        return answer

    def chunk(self, name: str, n: int) -> Answer:
        """The next `n` tokens of a prompt are scheduled."""
        request = self.unscheduled(name)
        require((self.traits.chunk or request.loaded) and 1 <= n <= request.remaining)
        require(request.computed > 0 or request.loaded)
        require(n == request.remaining or (self.traits.chunk and n % self.traits.chunk_align == 0))
        self.goals_met["chunk"] += 1
        return self._reserve(request, n)

    def decode(self, name: str, token: int, drafts: Sequence[int]) -> Answer:
        """One more token is sampled, unless one waits for its slot, and scheduled with `drafts` behind it."""
        request, traits = self.unscheduled(name), self.traits
        length = max(len(request.tokens), request.computed + 1) + len(drafts)
        require(request.remaining <= 1 and (traits.max_length is None or length <= traits.max_length))
        require(traits.tokens_per_decode is None or 1 + len(drafts) <= traits.tokens_per_decode)
        appended = request.remaining == 0
        if appended:
            self._call(self.adapter.append, name, token)
            request.tokens.append(token)
        request.drafts = list(drafts)
        return self._reserve(request, 1 + len(drafts), appended)

    def withdraw(self, name: str) -> Answer:
        """The schedule of a request in this step is withdrawn, before any later admission."""
        require(name in self.withdrawable())
        request = self.live[name]
        self.unchanged = {}
        self._call(self.adapter.withdraw, name)
        self.follow_transfers()
        self.scheduled.remove(name)
        request.pending = 0
        request.drafts = []
        if request.admitted:
            self.gone(name)
        self.last_admission = None
        self.goals_met["withdraw"] += 1
        if not self.scheduled:
            self.settle()
        return DONE

    def preempt(self, name: str) -> Answer:
        """A request with nothing reserved gives its slots back, to be resumed."""
        require(name not in self.loading or not self.admitting)
        request = self.loading.get(name) or self.unscheduled(name)
        self.unchanged = {}
        self._call(self.adapter.preempt, name)
        self.follow_transfers()
        self.preempted[name] = self.gone(name, "preempt_loading")
        request.admitted = False
        self.goals_met["preempt"] += 1
        if not self.scheduled:
            self.settle()
        return DONE

    def forward(self, accept: int | dict[str, int] | None, abort: Sequence[str], reverse: bool | None) -> Answer:
        """Copies, launch, all writes, all reads, then commits in scheduling order or `reverse` (rule 1).

        `accept` drafts of each request are accepted, or as many as it says for the request; requests in `abort` are
        aborted instead of committed.
        """
        require(self.allows("forward") and set(abort) <= set(self.scheduled))
        due = self._due_copies()
        self._answer = Answer(text=self.copies_text(due)) if due else DONE
        self.copy_and_launch(due)
        self.write_and_read()
        for name in reversed(self.scheduled) if reverse else list(self.scheduled):
            if name in abort:
                self._call(self.adapter.abort, name)
                self.gone(name)
                self.follow_transfers()
                self.goals_met["launched_abort"] += 1
            else:
                self._commit(self.live[name], accepted_of(accept, name))
        self.goals_met["reverse_commits"] += bool(reverse) and len(self.scheduled) > 1
        self.scheduled.clear()
        self.admitting = False
        self.last_admission = None
        if self.transfers is not None:
            self.transfers.returned()
        self.settle()
        # Behind the settling, which blames a writer of this forward for slots that a commit has swapped.
        self.memory.end_forward()
        return Answer(text=self.so_far)

    def finish(self, name: str) -> Answer:
        """A request that has computed its prompt ends; what stays cached is the engine's business (rule 9)."""
        require(self.between_steps("finish", name).remaining <= 1)
        self._call(self.adapter.finish, name)
        self.gone(name)
        self.settle()
        return DONE

    def abort(self, name: str) -> Answer:
        """A request ends in whatever phase it is."""
        if name in self.fetching:
            return self.abort_fetching(name)
        request = self.loading.get(name) or self.between_steps("abort", name)
        require(self.allows("abort"))
        self.goals_met["abort_in_prefill"] += name in self.live and request.remaining > 1
        self._call(self.adapter.abort, name)
        self.gone(name)
        self.settle()
        return DONE

    def fork(self, name: str, child: str) -> Answer:
        """A child starts with everything its parent knows and has computed."""
        parent = self.between_steps("fork", name)
        require(child not in self.used_names)
        self.used_names.add(child)
        before = None if self.stale else self.questions.before_operation()
        due = self.copies_of(self.adapter.fork, name, child)
        if due is None:
            self.check_unchanged(before, "a fork")
            self.settle()
            return REFUSED
        self.copy_apart(due, f"when {child} was forked")
        self.live[child] = parent.forked(child)
        self.goals_met["fork"] += 1
        self.goals_met["fork_in_block"] += parent.computed % self.traits.block_size > 0
        self.settle()
        return Answer(text=f"copies {counted(len(due), self.unit)}") if due else DONE

    def evict_all(self) -> Answer:
        """The engine drops everything that is cached and that no live request holds."""
        require(self.allows("evict_all"))
        self.catch_up()
        self._call(self.adapter.evict_all)
        self.check_evicted()
        self.goals_met["evict_all"] += 1
        self.settle()
        return DONE

    def reset(self) -> Answer:
        """Live and preempted requests are gone, and so is everything cached."""
        require(self.allows("reset"))
        self.catch_up()
        self.goals_met["reset_live"] += bool(self.live)
        self._call(self.adapter.reset)
        self.live.clear()
        self.loading.clear()
        self.preempted.clear()
        self.fetching.clear()
        self.check_reset()
        self.settle()
        return DONE

    def _admit(self, request: Request, n: int) -> Answer:
        before = None if self.stale else self.questions.before_operation()
        if self.listening is not None:
            # Before the call: what it stores may be announced already, and is no hit of its own.
            self.listening.listen()
        first = not self.scheduled
        cached = self._call(self.adapter.admit, request.name, list(request.tokens), request.extra_key, n)
        self.goals_met["admit_into_step"] += any(not self.live[s].admitted for s in self.scheduled)
        self.follow_transfers()
        self.admitting = True
        self.last_admission = None
        if self.transfers is not None and isinstance(cached, Fetching):
            return self.wait_for_fetch(request, before)
        if cached is None:
            self._answer = REFUSED
            self.goals_met["refused_admission"] += 1
            self.check_refused_admission(request, before)
            if not self.scheduled:
                self.admitting = False
                self.settle()
            return REFUSED
        self.fetching.pop(request.name, None)
        self.unchanged = {}
        if self.transfers is not None and isinstance(cached, Loading):
            return self.wait_for_loads(request, cached)
        cached, n = self.admitted(cached, n)
        cached = self.hit_of(cached, "admit")
        self._answer = Answer(cached=cached)
        self.check_hit(request, cached, "admit")
        if self.listening is not None:
            late = request.name if self.transfers is not None else None
            self.listening.compare(Hit(request.tokens, request.extra_key, cached), late)
        request.computed = request.hit = cached
        request.pending = min(n, len(request.tokens) - cached)
        request.admitted = True
        self.live[request.name] = request
        self.scheduled.append(request.name)
        self.last_admission = request.name
        self.first_hit = request if first else self.first_hit
        notice_hit(self.goals_met, request, self.traits.block_size)
        return Answer(cached=cached)

    def _reserve(self, request: Request, n: int, appended: bool = False) -> Answer:
        before = None if self.stale else self.questions.before_operation()
        accepted = self._call(self.adapter.reserve, request.name, n)
        self.follow_transfers()
        if accepted is None:
            raise Divergence(ERROR_CONTRACT.id, "reserve returned None, not True or False")
        if not accepted:
            self._answer = REFUSED
            self.goals_met["refused_reserve"] += 1
            request.drafts = []
            self.check_refused_reservation(request, n, before, appended)
            if not self.scheduled:
                self.settle()
            return REFUSED
        self.unchanged = {}
        request.pending = n = self.reserved(request, accepted, n)
        request.admitted = request.loaded = False
        self.scheduled.append(request.name)
        self.goals_met["drafts"] += len(request.drafts) > 0
        self.goals_met["decode_at_block_start"] += request.computed % self.traits.block_size == 0
        return DONE

    def _commit(self, request: Request, accept: int) -> None:
        accepted = request.drafts[:accept]
        for token in accepted:
            self._call(self.adapter.append, request.name, token)
            request.tokens.append(token)
        n = request.pending - len(request.drafts) + len(accepted)
        self.goals_met["rejected_drafts"] += len(accepted) < len(request.drafts)
        request.drafts = []
        request.pending = 0
        request.admitted = False
        self.checks.subject = request.name
        self._call(self.adapter.commit, request.name, n)
        request.computed += n
        if self.listening is not None:
            self.listening.computed(request, request.computed - n)
        if self.traits.copies_at_commit:
            self.copy_apart(self._due_copies(), f"when {request.name} was committed")
        else:
            self.follow_transfers()

    def _due_copies(self) -> list[Any]:
        due = self.copies_of(self.adapter.copies)
        if due is None:
            raise Divergence(ERROR_CONTRACT.id, "copies returned None, not a list of copies")
        return due
