"""kv_scheduler with recurrent states that run in blocks of their request, and with checkpoints beside them.

A request has one block for each token that may turn out to be the last of its batch. It goes on from the block of the
last right draft, and writes over all of them. None of them is ever published: where a batch may come to an end of the
grid, it gets a checkpoint, to which the device copies the state there as soon as it knows its drafts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvlockstep.reference.kv_manager.groups.contract import Step
from kvlockstep.reference.kv_manager.groups.manager import GroupedManager
from kvlockstep.reference.kv_manager.groups.request import Request
from kvlockstep.reference.kv_scheduler.grouped import StatePool


@dataclass
class Running:
    """The blocks in which the state of a request runs; while a batch is out, its checkpoint and where that may be."""

    blocks: list[int] = field(default_factory=list)
    checkpoint: int | None = None
    ends: list[int] = field(default_factory=list)


class CheckpointedManager(GroupedManager):
    """The reference manager with blocks that its states stay in."""

    def reset(self) -> None:
        super().reset()
        self.running: dict[tuple[int, int], Running] = {}

    def run_of(self, g: int, request: Request) -> Running:
        return self.running.setdefault((id(request), g), Running())

    def width(self, stops: range) -> int:
        """How many blocks the states of a batch take that may end at these positions."""
        return len(stops)

    def _saves(self, blocks: list[int], stops: range) -> dict[int, int]:
        """The block that the state behind each position goes to."""
        return dict(zip(stops, blocks, strict=False))

    def held(self, rid: str, group: int) -> Iterable[int]:
        run = self.run_of(group, self._live[rid])
        own = [*run.blocks, *([] if run.checkpoint is None else [run.checkpoint])]
        return list(dict.fromkeys([*super().held(rid, group), *own]))

    def state(self, rid: str, group: int) -> Step:
        run = self.run_of(group, self._live[rid])
        step = super().state(rid, group)
        return step._replace(checkpoints=[(end, run.checkpoint) for end in run.ends if run.checkpoint is not None])

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        for g in range(len(self.groups)):
            request.states[g] = self._outside(g, request)
            request.saves[g] = {}
            run = self.running.pop((id(request), g), Running())
            for block in (*run.blocks, *([] if run.checkpoint is None else [run.checkpoint])):
                self._pool(g).drop(block)
        super().finish(rid)

    def _outside(self, g: int, request: Request) -> int | None:
        """The state that the request goes on from, if it has only hit it."""
        state = request.states[g]
        return None if state in self.run_of(g, request).blocks else state

    def _own_state(self, g: int, request: Request) -> int | None:
        return None

    def _need(self, request: Request, n: int) -> Counter[str]:
        need, stops = super()._need(request, n), request.stops(n)
        for g, group in enumerate(self.groups):
            if group.kind == "state":
                need[group.pool] += max(0, self.width(stops) - len(self.run_of(g, request).blocks)) - len(stops)
                need[group.pool] += bool(self._ends(g, stops))
        return need

    def _ends(self, g: int, stops: range) -> list[int]:
        """The positions at which a batch may come to an end of the grid."""
        return [stop for stop in stops if stop % self.groups[g].block_size == 0]

    def _grow_in(self, g: int, request: Request, n: int) -> None:
        if self.groups[g].kind != "state":
            super()._grow_in(g, request, n)
            return
        run, stops = self.run_of(g, request), request.stops(n)
        run.blocks += [self._pool(g).take() for _ in range(self.width(stops) - len(run.blocks))]
        request.saves[g] = self._saves(run.blocks, stops)
        run.ends = self._ends(g, stops)
        run.checkpoint = self._pool(g).take() if run.ends else None

    def _keep_state(self, g: int, request: Request) -> None:
        """Goes on from the last right draft; publishes the checkpoint, or frees it if no end was come to."""
        run, hit = self.run_of(g, request), self._outside(g, request)
        request.states[g], request.saves[g] = request.saves[g][request.computed], {}
        if hit is not None:
            self._pool(g).drop(hit)
        if run.checkpoint is not None:
            reached = [end for end in run.ends if end <= request.computed]
            for end in reached[-1:]:
                self._publish(g, request, end // self.groups[g].block_size - 1, run.checkpoint)
            self._pool(g).drop(run.checkpoint)
        run.checkpoint, run.ends = None, []


class CheckpointedStates(StatePool):
    """Full attention, a window, and states that run in blocks of their request."""

    manager = CheckpointedManager

    def _states(self, blocks: int) -> int:
        # What it has hit, one behind the token and each of its drafts, and a checkpoint.
        return max(self.drafts + 3, blocks // 2)
