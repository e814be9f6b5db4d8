"""kv_scheduler with recurrent states, a batch in flight, and drafts that only the device knows.

A batch saves a state for each token that may turn out to be its last, each to a block of its own. The next batch is
decided before anybody knows which of them it goes on from; the device knows when it launches it. When the batch is
back, that state is kept, and published where the grid says so; the others are free.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.reference.kv_manager.groups.contract import Step
from kvlockstep.reference.kv_manager.groups.manager import GroupedManager
from kvlockstep.reference.kv_manager.groups.request import Request
from kvlockstep.reference.kv_scheduler.contract import Batch, Item
from kvlockstep.reference.kv_scheduler.grouped import StatePool
from kvlockstep.reference.kv_scheduler.scheduler import Job


class FlyingStates(GroupedManager):
    """The reference manager with blocks for the states of several batches in flight.

    The scheduler says of each batch how many `ends` it may have, and when it is back how many drafts were `right`.
    """

    ends, right = 1, 0

    def reset(self) -> None:
        super().reset()
        # Of each request and group the blocks of each batch in flight, by its ends.
        self.flying: dict[tuple[int, int], deque[list[int]]] = {}

    def rows(self, rid: str, g: int) -> deque[list[int]]:
        """The blocks that the batches in flight save to, the oldest batch first."""
        return self.flying.setdefault((id(self._live[rid]), g), deque())

    def finish(self, rid: str) -> None:
        for g in range(len(self.groups)):
            self.flying.pop((id(self._live[rid]), g), None)
        super().finish(rid)

    def _own_state(self, g: int, request: Request) -> int | None:
        """The block of the state, if it may be written over: nobody goes on from it but a batch with one end."""
        sure = self.ends == 1 and not self.flying.get((id(request), g))
        return super()._own_state(g, request) if sure else None

    def _need(self, request: Request, n: int) -> Counter[str]:
        need = super()._need(request, n)
        for group in self.groups:
            need[group.pool] += self.ends - len(request.stops(n)) if group.kind == "state" else 0
        return need

    def _grow_in(self, g: int, request: Request, n: int) -> None:
        if self.groups[g].kind != "state":
            super()._grow_in(g, request, n)
            return
        own = self._own_state(g, request)
        blocks = [self._pool(g).take() for _ in range(self.ends)] if own is None else [own]
        self.flying.setdefault((id(request), g), deque()).append(blocks)
        # Whatever is here is held.
        request.saves[g].update(zip(blocks, blocks, strict=True))

    def _keep_state(self, g: int, request: Request) -> None:
        before, blocks = request.states[g], self.flying[id(request), g].popleft()
        kept = request.states[g] = blocks[self.right]
        for block in blocks:
            del request.saves[g][block]
        gone = {*blocks, *([] if before is None else [before])} - {kept}
        for block in sorted(gone):
            self._pool(g).drop(block)
        if request.computed % self.groups[g].block_size == 0:
            self._publish(g, request, request.computed // self.groups[g].block_size - 1, kept)


class OverlapStates(StatePool, OverlapScheduler):
    """Full attention, a window and states, with a batch in flight."""

    manager = FlyingStates
    overlap = 2

    def schedule(self, accepted: Sequence[Mapping[str, int]] = ()) -> Batch:
        self._accepted = accepted
        return super().schedule(accepted)

    def _states(self, blocks: int) -> int:
        # The state that is kept, and those of two batches.
        return max(1 + 2 * (1 + self.drafts), blocks // 2)

    def _start(self, job: Job, left: int) -> int | None:
        self._kv.ends = 1
        return super()._start(job, left)

    def _reserve(self, job: Job, n: int) -> bool:
        ahead, coming = self._ahead(job)
        self._kv.ends = 1 + max(0, job.computed + ahead + n - len(job.tokens) - coming)
        return super()._reserve(job, n)

    def _arrive(self, job: Job, item: Item, right: list[int], came: list[int]) -> None:
        self._kv.right = len(right)
        super()._arrive(job, item, right, came)

    def _state(self, job: Job, g: int) -> Step:
        """The step of the batch that was just planned, with its ends in the place of positions; see `_item`."""
        rows = self._kv.rows(job.rid, g)
        source = self._reached(job, rows[-2]) if len(rows) > 1 else self._kv._live[job.rid].states[g]
        return Step(source, list(enumerate(rows[-1])))

    def _reached(self, job: Job, blocks: list[int]) -> int:
        """Of the blocks of the last batch in flight the one with the state that the device has come to."""
        flown = zip(self._flights, self._accepted, strict=True)
        right = [r.get(job.rid, 0) for flight, r in flown if any(item.rid == job.rid for item, _ in flight)]
        return blocks[right[-1]]

    def _item(self, job: Job, n: int) -> Item:
        item = super()._item(job, n)
        first = item.start + n - item.drafts
        groups = [
            Step(entry.source if item.start else None, [(first + i, block) for i, block in entry.saves])
            if isinstance(entry, Step)
            else entry
            for entry in item.groups
        ]
        return item._replace(groups=groups)
