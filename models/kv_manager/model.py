"""What a scheduler can do to a kv_manager: prompts that share prefixes, chunks, drafts, forks, preemption, aborts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from kvlockstep.models.core.model import Factory, Goal, Model, Scope, simpler_args
from kvlockstep.models.core.op import NotEnabled, Op, Pick, command
from kvlockstep.models.core.picture import Picture
from kvlockstep.models.kv_manager.forks import LOOK_UP, Forks
from kvlockstep.models.kv_manager.judge import KVJudge
from kvlockstep.models.kv_manager.operations import OPERATIONS
from kvlockstep.models.kv_manager.picture import picture
from kvlockstep.models.kv_manager.prompts import Prompts
from kvlockstep.models.kv_manager.scope import ALIKE_KEYS, KVScope, scopes
from kvlockstep.models.kv_manager.shortcuts import shortcuts
from kvlockstep.models.requests.adapter import as_state, make_adapter, named, not_checked
from kvlockstep.models.requests.answers import operate
from kvlockstep.models.requests.request import Request
from kvlockstep.models.requests.shrinking import (
    by_request,
    less_room,
    plain_keys,
    smaller_pools,
    thinned_blocks,
    tidied,
    without_forks,
)
from kvlockstep.models.requests.slot_memory import SlotMemory
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION


class KVManagerModel(Model[KVScope]):
    contract = "kv_manager"
    laws = laws.LAWS
    scope_type = KVScope
    operations = OPERATIONS
    scopes = tuple(scopes())
    # One request at a time, or one token, leaves the budget for longer sequences than two of each do.
    small_scopes = (
        KVScope(2, 1, 1, 2, exhaustive=True),
        KVScope(2, 1, 2, 2, (1, 2), (None, 1), exhaustive=True),
        KVScope(2, 1, 1, 2, (1,), ALIKE_KEYS, exhaustive=True),
        KVScope(2, 2, 1, 3, (1,), exhaustive=True),
        KVScope(2, 2, 1, 3, exhaustive=True),
        KVScope(3, 2, 2, 3, exhaustive=True),
        KVScope(3, 2, 2, 5, exhaustive=True),
    )
    goals = (
        Goal("hit", "a request starts with cached tokens", "prefix_cache"),
        Goal("full_prompt_hit", "everything but the last block of a whole-block prompt is cached", "prefix_cache"),
        Goal("eviction", "a step takes more blocks than were free", "prefix_cache"),
        Goal("physical_reuse", "a slot is written by a second request"),
        Goal("twins", "equal prompts are admitted in one step, before either is cached"),
        Goal("admit_into_step", "a request is admitted into a step that already has work"),
        Goal("refused_admission", "an admission is refused"),
        Goal("refused_reserve", "a reservation is refused"),
        Goal("chunk", "a prompt is computed in chunks", "chunk"),
        Goal("abort_in_prefill", "a request is aborted with part of its prompt computed", "chunk"),
        Goal("launched_abort", "a request is aborted after its forward was launched"),
        Goal("preempt", "a request is preempted"),
        Goal("resume", "a preempted request comes back"),
        Goal("reverse_commits", "a step commits in another order than it scheduled"),
        Goal("drafts", "drafts are reserved behind a decode", "drafts"),
        Goal("rejected_drafts", "some drafts are rejected", "drafts"),
        Goal("withdraw", "what was scheduled is withdrawn", "can_withdraw"),
        Goal("fork", "a request is forked", "can_fork"),
        Goal("fork_in_block", "a request is forked in the middle of a block", "can_fork"),
        Goal("copies", "slots are copied", "copies"),
        Goal("reset_live", "a reset ends live requests", "can_reset"),
        Goal("evict_all", "everything cached is evicted", "can_evict_all"),
        Goal("extra_key", "a request has an extra key", "extra_key"),
        Goal("announced_hit", "a request hits what events have announced", "event_listener"),
        Goal("announced_removal", "an event says that a block is gone", "event_listener"),
        Goal("length_0_mod_block", "a prompt fills its last block"),
        Goal("length_1_mod_block", "a prompt has one token in its last block"),
        Goal("length_-1_mod_block", "a prompt lacks one token of filling its last block"),
        Goal("long_request", "a prompt has nine blocks or more"),
        Goal("decode_at_block_start", "a decode writes the first slot of a block"),
    )

    def __init__(self, scope: KVScope, factory: Factory) -> None:
        super().__init__(scope, factory)
        self.judge = KVJudge(make_adapter(factory, scope.blocks, scope.block_size), SlotMemory, scope.ask)
        self.reach = self.judge.reach
        self.prompts = Prompts(scope, self.judge)
        self.forks = Forks(scope, self.judge)
        self._size = self.judge.traits.block_size
        self._named = 0
        self._resumed: set[str] = set()

    @command(6)
    def admit(self, pick: Pick) -> Op:
        """A new request asks for admission."""
        self._require(len(self.judge.live) < self.scope.live)
        self.forks.in_turn("admit", pick)
        tokens, key = self.prompts.propose(pick, self.forks.turns == LOOK_UP)
        name = self._new_name(pick, self.judge.live)
        return Op("admit", request=name, tokens=tokens, extra_key=key, n=self._chunk_of(pick, len(tokens)))

    @command(2)
    def resume(self, pick: Pick) -> Op:
        """A preempted request comes back."""
        self._require(len(self.judge.live) < self.scope.live)
        self.forks.in_turn("resume", pick)
        waiting = list(self.judge.preempted)
        name = pick(waiting if self.scope.exhaustive else [*waiting, *waiting[-1:]])
        return Op("resume", request=name, n=self._chunk_of(pick, len(self.judge.preempted[name].tokens)))

    @command(2)
    def chunk(self, pick: Pick) -> Op:
        """The next part of a prompt is scheduled."""
        self._require(self.judge.traits.chunk)
        self.forks.in_turn("chunk", pick)
        idle = [r for r in self._idle() if r.remaining > 0 and r.computed > 0]
        request = pick([*idle, *self.forks.urgent(idle)])
        return Op("chunk", request=request.name, n=self._chunk_of(pick, request.remaining))

    @command(6)
    def decode(self, pick: Pick) -> Op:
        """A token is sampled and scheduled, perhaps with drafts behind it."""
        traits = self.judge.traits
        longest = traits.max_length or 10**9
        idle = [r for r in self._idle() if r.remaining <= 1 and r.computed < longest]
        self.forks.in_turn("decode", pick)
        request = pick([*idle, *self.forks.urgent(idle)])
        most = min(traits.tokens_per_decode or 10**9, longest - request.computed) - 1
        # The widest drafts cross two ends of blocks, in large pools of small blocks many.
        wide = 12 if self.scope.blocks > 12 and self._size == 1 else 2
        widths = (0, 0, 0, 1, 2, self._size, wide * self._size)
        width = pick([k for k in widths if k <= most]) if most > 0 and not self.scope.exhaustive else 0
        return Op(
            "decode",
            request=request.name,
            token=pick(self.scope.tokens),
            drafts=[pick(self.scope.tokens) for _ in range(width)],
        )

    @command(3)
    def withdraw(self, pick: Pick) -> Op:
        """The last thing scheduled is taken back, most often where a shared block was to be copied for it."""
        names = self.judge.withdrawable()
        torn = [name for name in names if name in self.forks.torn] if len(names) > 1 else []
        self._require(bool(torn) or self.scope.exhaustive or pick((True, False, False)))
        self.forks.in_turn("withdraw", pick)
        return Op("withdraw", request=pick(torn or names))

    @command(1)
    def preempt(self, pick: Pick) -> Op:
        """A request gives its slots back and waits."""
        self._require(not self.scope.exhaustive or not self.judge.preempted)
        self.forks.in_turn("preempt", pick)
        idle = self._idle()
        again = [r for r in idle if r.name in self._resumed]
        shared = [r for r in idle if self.forks.torn and self.forks.sharers(r.name)]
        return Op("preempt", request=pick([*idle, *2 * shared, *2 * again]).name)

    @command(5)
    def forward(self, pick: Pick) -> Op:
        """The step runs."""
        scheduled = self.judge.scheduled
        self._require(bool(scheduled))
        self.forks.in_turn("forward", pick)
        drafts = max(len(self.judge.live[name].drafts) for name in scheduled)
        abort = pick(([], [], [], [], [], scheduled[-1:], scheduled[:1])) if not self.scope.exhaustive else []
        return Op(
            "forward",
            accept=pick((0, *range(drafts + 1))) if drafts else None,
            abort=list(abort),
            reverse=pick((None, True)) if len(scheduled) > 1 else None,
        )

    @command(2)
    def finish(self, pick: Pick) -> Op:
        """A request ends."""
        self._require(not self.judge.scheduled)
        self.forks.in_turn("finish", pick)
        names = [r.name for r in self.judge.live.values() if r.remaining <= 1]
        related = [name for name in names if self.forks.kin(name, self.forks.returned)]
        return Op("finish", request=pick([*names, *3 * related]))

    @command(1)
    def abort(self, pick: Pick) -> Op:
        """A request is aborted in whatever phase it is."""
        self._require(not self.judge.scheduled)
        self.forks.in_turn("abort", pick)
        return Op("abort", request=pick(list(self.judge.live)))

    @command(3)
    def fork(self, pick: Pick) -> Op:
        """A request is forked."""
        self._require(
            self.judge.traits.can_fork and not self.judge.scheduled and len(self.judge.live) < self.scope.live
        )
        self._require(not self.scope.many)
        self.forks.in_turn("fork", pick)
        live = list(self.judge.live)
        inside = [name for name in live if self.judge.live[name].computed % self._size]
        parents = live if self.scope.exhaustive else [*live, *inside]
        if self.forks.leads:
            # Now one more holder of a block that has several, now another family.
            again = pick((True, False))
            parents = [name for name in inside if bool(self.forks.sharers(name)) == again] or parents
        parent = pick(parents)
        return Op("fork", request=parent, child=self._new_name(pick, [parent]))

    @command(1)
    def evict_all(self, pick: Pick) -> Op:
        """The cache is emptied of what nobody holds."""
        self._require(self.judge.traits.can_evict_all and not self.judge.scheduled)
        self.forks.in_turn("evict_all", pick)
        self._require(not self.scope.many and (self.scope.exhaustive or pick((False, True))))
        return Op("evict_all")

    @command(1)
    def reset(self, pick: Pick) -> Op:
        """Everything is forgotten."""
        self._require(self.judge.traits.can_reset and not self.judge.scheduled)
        self.forks.in_turn("reset", pick)
        self._require(not self.scope.many and not self.scope.long)
        self._require(self.scope.exhaustive or pick((False, False, False, True)))
        return Op("reset")

    @property
    def evaluated(self) -> Counter[str]:
        return self.judge.evaluated

    def forget(self) -> None:
        super().forget()
        self.judge.evaluated.clear()

    def step(self, op: Op) -> str:
        return self._execute(op)

    def redo(self, op: Op) -> None:
        self._execute(op)

    def _execute(self, op: Op) -> str:
        args = dict(op.args)
        name = args.pop("request", None)
        method = getattr(self.judge, op.name, None) if op.name in _OPERATIONS else None
        if method is None:
            raise NotEnabled
        tears = self.forks.tears(op)
        leaving = self.judge.live.get(name) if op.name in ("finish", "preempt") else None
        answer = operate(self.judge, self.avails, method, *([] if name is None else [name]), **args)
        self.evaluated[ERROR_CONTRACT.id] += 1
        self.evaluated[TERMINATION.id] += 1
        if op.name == "admit":
            self.prompts.remember(args["tokens"], args["extra_key"])
        if leaving is not None:
            self.prompts.remember(leaving.tokens, leaving.extra_key)
        if op.name == "resume" and name in self.judge.live:
            self._resumed.add(name)
        self.forks.note(op, answer, tears)
        for created in (name, args.get("child")):
            if created and created[1:].isdecimal():
                self._named = max(self._named, int(created[1:]) + 1)
        return answer

    def fingerprint(self) -> Any:
        """Requests by age and not by name, memory by history, idle blocks in the order in which they became so."""
        judge = self.judge
        requests = tuple(
            (tuple(r.tokens), r.extra_key, r.computed, r.pending, r.admitted, tuple(as_state(judge.places.table, name)))
            for name, r in judge.live.items()
        )
        scheduled = tuple(list(judge.live).index(name) for name in judge.scheduled)
        preempted = tuple((tuple(r.tokens), r.extra_key) for r in judge.preempted.values())
        step = (judge.admitting, len(judge.withdrawable()))
        return requests, scheduled, preempted, step, judge.memory.contents(), tuple(judge.idle_blocks)

    def sketch(self) -> Any:
        judge = self.judge
        requests = tuple((tuple(r.tokens), r.extra_key, r.computed, r.pending) for r in judge.live.values())
        preempted = tuple((tuple(r.tokens), r.extra_key) for r in judge.preempted.values())
        contents = len(self.prompts.history) if self.scope.many else judge.memory.contents()
        return requests, preempted, judge.admitting, contents, tuple(judge.idle_blocks)

    def picture(self) -> Picture:
        return picture(self.judge)

    def not_checked(self) -> dict[str, str]:
        return not_checked(self.laws, self.judge.traits, self.judge.places)

    def unreachable(self) -> set[str]:
        traits = self.judge.traits
        has = {
            **vars(traits),
            # The judge has no listener where tables come by block, whatever the target declares.
            "event_listener": self.judge.listener is not None,
            "drafts": traits.tokens_per_decode is None or traits.tokens_per_decode > 1,
            "copies": traits.copies_at_admit
            or (traits.copies_at_reserve and traits.can_fork and traits.block_size > 1),
        }
        unreachable = {g.id for g in self.goals if g.when and not has[g.when]}
        if traits.max_length is not None and traits.max_length < 9 * traits.block_size:
            unreachable.add("long_request")
        if traits.max_length is not None and traits.max_length <= traits.block_size:
            unreachable |= {"full_prompt_hit", "refused_reserve", "decode_at_block_start"}
        if traits.max_length is not None and not self.judge.saw_growth:  # every request has its row from the start
            unreachable.add("refused_reserve")
        if traits.block_size == 1:
            unreachable.add("fork_in_block")
        if not self.judge.saw_evictable:
            unreachable.add("eviction")
        return unreachable

    def describe(self) -> dict[str, Any]:
        return {**named(self.judge.adapter), "traits": self.judge.traits}

    @classmethod
    def simpler_scopes(cls, scope: KVScope) -> Iterable[KVScope]:
        if scope.ask != "avail":
            yield replace(scope, ask="avail")
        yield from smaller_pools(scope)

    @classmethod
    def simpler(cls, op: Op) -> Iterable[Op]:
        plain: dict[str, Any] = {"extra_key": None, "accept": None, "reverse": None, "abort": [], "drafts": []}
        for name, value in plain.items():
            if op.args.get(name, value) not in (value, []):
                yield op.but(**{name: value})
        for simpler in simpler_args(op):
            if op.name != "admit" or not simpler.args["tokens"]:
                yield simpler
                continue
            whole = op.args["n"] == len(op.args["tokens"])
            length = len(simpler.args["tokens"])
            if whole and simpler.args["n"] == op.args["n"]:
                yield simpler.but(n=length)
            yield simpler.but(n=min(simpler.args["n"], length))

    @classmethod
    def smaller(cls, scope: KVScope, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
        yield from super().smaller(scope, ops)
        yield from thinned_blocks(scope, ops)

    @classmethod
    def smaller_at_once(cls, scope: KVScope, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
        yield from ((scope, plainer) for plainer in plain_keys(ops))
        yield from less_room(scope, ops)

    @classmethod
    def shortcuts(cls, ops: Sequence[Op], answers: Sequence[str]) -> Iterable[Sequence[Op]]:
        return shortcuts(ops, answers)

    @classmethod
    def parts(cls, ops: Sequence[Op]) -> list[set[int]]:
        return by_request(ops)

    @classmethod
    def merged(cls, ops: Sequence[Op]) -> Iterable[Sequence[Op]]:
        return without_forks(ops)

    @classmethod
    def tidy(cls, ops: Sequence[Op]) -> Iterable[Sequence[Op]]:
        return tidied(ops)

    def _new_name(self, pick: Pick, others: Iterable[str]) -> str:
        """The next number, or now and then the name of another request with a digit more: r1 and r10."""
        longer = [f"{name}0" for name in others if len(name) < 4 and name != "r0"]
        longer = [name for name in longer if name not in self.judge.used_names]
        if longer and not self.scope.exhaustive and pick((False, False, False, False, True)):
            return pick(longer)
        return f"r{self._named}"

    def _require(self, enabled: bool) -> None:
        if not enabled:
            raise NotEnabled

    def _idle(self) -> list[Request]:
        if self.judge.admitting or self.scope.many:
            raise NotEnabled
        return [r for r in self.judge.live.values() if not r.pending]

    def _chunk_of(self, pick: Pick, tokens: int) -> int:
        traits = self.judge.traits
        if not traits.chunk or self.scope.many or self.scope.forks:
            return tokens
        align = traits.chunk_align
        if self.scope.exhaustive:
            every: list[int] = sorted({tokens, *range(align, tokens, align)}, reverse=True)
            return pick(every)
        sizes = {tokens, *(a - a % align for a in (1, self._size - 1, self._size, self._size + 1, 2 * self._size))}
        return pick([tokens, *sorted(n for n in sizes if 0 < n <= tokens)])


_OPERATIONS = frozenset(c.name for c in KVManagerModel.commands)
