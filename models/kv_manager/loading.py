"""Operations of a kv_manager with tiers: what is loaded for an admission, and transfers that end and are heard of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvlockstep.models.core.op import require
from kvlockstep.models.core.taking import taken
from kvlockstep.models.kv_manager.goals import notice_hit
from kvlockstep.models.kv_manager.one_table import OneTable
from kvlockstep.models.requests.adapter import answered
from kvlockstep.models.requests.answers import DONE, Answer
from kvlockstep.models.requests.request import Request
from kvlockstep.models.requests.traits import as_number
from kvlockstep.models.requests.transfers.ends import EndsTransfers
from kvlockstep.models.requests.transfers.moving import Moving
from kvlockstep.properties.kv_manager import laws, loading
from kvlockstep.properties.kv_manager.listener import Hit
from kvlockstep.reference.kv.transfers import Loading

# What a method that says how many tokens are cached returns.
HITS = {
    "admit": "a number: None refuses, 0 means that nothing is cached",
    "ready": "a number: None means that it still loads",
}


class LoadingOperations(OneTable, EndsTransfers):
    """The operations of a trace that only a target with tiers has, and what the other ones need of its transfers.

    A request in `loading` holds its slots. It is neither scheduled nor read before `ready` says that its loads have
    ended; until then it may be aborted or preempted.
    """

    def poll(self) -> Answer:
        """The manager takes in what has ended."""
        require(self.allows("poll"))
        answered(self.adapter.poll)
        self.tiered().heard()
        self.settle()
        return DONE

    def ready(self, name: str) -> Answer:
        """A request that loads is asked for; once it is ready it goes on behind what was loaded."""
        require(self.allows("ready") and name in self.loading)
        request, transfers = self.loading[name], self.tiered()
        answer = answered(self.adapter.ready, name)
        self.follow_transfers()
        self.checks.check(
            loading.load_ends, name, answer is None, [str(moving) for moving in transfers.moving.values()]
        )
        if answer is None:
            self.settle()
            return Answer(text="still loading")
        cached = self.hit_of(answer, "ready")
        self.check_hit(request, cached, "ready")
        self.checks.check(loading.promise_kept, name, cached, request.hit, name in self.doubtful)
        self.goals_met["ready_less"] += cached < request.hit
        self.live[name] = self.loading.pop(name)
        request.computed = request.hit = cached
        request.loaded = True
        self.begins(name)
        notice_hit(self.goals_met, request, self.traits.block_size)
        self.settle()
        return Answer(cached=cached)

    def wait_for_loads(self, request: Request, said: Loading) -> Answer:
        """An admission is granted whose request waits for what is loaded."""
        request.hit = self.hit_of(said.cached, "admit")
        self._answer = Answer(text=f"loading {request.hit}")
        self.check_hit(request, request.hit, "admit")
        if self.listening is not None:
            self.listening.compare(self.listening.loaded(Hit(request.tokens, request.extra_key, request.hit)))
        self.loading[request.name] = request
        self.saw_loading = True
        self.doubtful.discard(request.name)
        if self._failure_unheard():
            self.doubtful.add(request.name)
        if not self.scheduled:
            self.admitting = False
            self.settle()
        return Answer(text=f"loading {request.hit}")

    def wait_for_fetch(self, request: Request, before: int | None) -> Answer:
        """An admission is put off until something was fetched for its request, which holds nothing; avail was `before`.

        It asks again like one that was preempted.
        """
        self._answer = Answer(text="fetching")
        self.fetching[request.name] += 1
        self.preempted[request.name] = request
        # A move that is for nobody fetches nothing that anybody could wait for.
        fetches = [m for m in self.tiered().moving.values() if m.transfer.kind == "move" and m.transfer.rids]
        observed = request.name, list(map(str, fetches)), self.fetching[request.name], self.traits.patience
        self.checks.check(loading.fetch_ends, *observed)
        self.check_unchanged(before, "an admission that waits for a fetch")
        self.goals_met["fetching"] += 1
        if not self.scheduled:
            self.admitting = False
            self.settle()
        return Answer(text="fetching")

    def abort_fetching(self, name: str) -> Answer:
        """A request ends that was told to wait for a fetch."""
        require(self.allows("abort"))
        answered(self.adapter.abort, name)
        del self.fetching[name], self.preempted[name]
        self.tiered().gone(name, "abort_fetching")
        self.settle()
        return DONE

    def copy_and_launch(self, due: Sequence[Any]) -> None:
        """Makes the copies of a step and launches it; the worker waits for what it must before anything is written."""
        transfers = self.transfers
        if transfers is None:
            self.copy(due)
            answered(self.adapter.launch)
            return
        answered(self.adapter.launch)
        self.follow_transfers()
        # What is loaded for a request of this step may have been submitted by its admission, or by now.
        loaded = transfers.loading() | transfers.loaded_inside
        if self.first_hit is not None and self.first_hit.name in loaded:
            # A hit that was loaded for it stands in blocks that were free.
            self.first_hit = None
        if self.listening is not None:
            self.listening.launched(self.scheduled, loaded)
        transfers.wait()
        for name in self.scheduled:
            transfers.check_writes(name, self.blocks_to_write(name))
        transfers.launched(list(self.scheduled), set())
        for name in self.scheduled:
            if self.live[name].admitted:
                self.begins(name)
        self.goals_met["load_beside"] += bool(self.loading)
        self.goals_met["fetch_beside"] += bool(self.fetching)
        transfers.check_writes("a copy", self.blocks_copied(due))
        self.copy(due)

    def copy_apart(self, due: Sequence[Any], when: str) -> None:
        """Makes the copies of a call beside a forward; the worker waits for what it must before.

        What the call has waited for ran in front of them, since it made room; what else it submits runs behind.
        """
        behind = self.follow_transfers(waited=True)
        if self.transfers is not None:
            self.transfers.wait()
            self.transfers.check_writes("a copy", self.blocks_copied(due))
        self.copy(due, when)
        if self.transfers is not None:
            self.transfers.start(behind, self.holding())

    def gone(self, name: str, goal: str = "abort_loading") -> Request:
        """A request holds nothing any more; `goal` counts those that a load is for."""
        request = self.loading.pop(name, None)
        if self.transfers is not None:
            self.transfers.gone(name, goal if request else None)
        return request or self.live.pop(name)

    def settle_behind(self) -> None:
        if self._failure_unheard():
            self.doubtful.update(self.loading)
        # Within a step nobody asks for tables (rule 3).
        if self.scheduled:
            self.follow_transfers()
        else:
            self.settle()

    def _failure_unheard(self) -> bool:
        """True if whoever waits for a load may count on one whose failure the manager has not heard of."""
        return any(moving.failed for moving in self.tiered().moving.values())

    def may_fail(self, moving: Moving) -> bool:
        # A request admitted with a plain number reads what is loaded for it in this step, so that must not fail.
        needed = moving.transfer.kind == "load" and any(rid in self.live for rid in moving.transfer.rids)
        return super().may_fail(moving) and not needed

    def hit_of(self, answer: Any, said: str) -> int:
        """Takes the number of cached tokens that a method returned. Raises Divergence if it is no number."""
        return answer if type(answer) is int else taken(lambda: as_number(answer), answer, said, HITS[said])

    def check_hit(self, request: Request, cached: int, said: str) -> None:
        """Raises Divergence if a request cannot have so many cached tokens."""
        self.checks.check(laws.hit_bounds, cached, len(request.tokens), said)
