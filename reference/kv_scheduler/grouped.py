"""kv_scheduler with groups: the reference scheduler over the reference manager with groups, and its geometries.

The pools are as large as what one request of `max_length` tokens takes alone, in each of its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvlockstep.reference.kv.shape import blocks_for
from kvlockstep.reference.kv_manager.groups.contract import Group, Step
from kvlockstep.reference.kv_manager.groups.manager import GroupedManager
from kvlockstep.reference.kv_scheduler.contract import Item
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler


class GroupedScheduler(KVScheduler):
    """Meets kv_scheduler.contract.KVSchedulerTarget with groups."""

    frees_window = True
    # Makes what holds the KV of all groups.
    manager: type[Any] = GroupedManager
    _kv: Any

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        groups: tuple[Group, ...],
        pools: Mapping[str, int],
    ) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._kv = self.manager(groups, dict(pools))
        self.groups, self.pools, self.total = groups, self._kv.pools, self._kv.total
        self.max_length = blocks * block_size

    def slots(self, rid: str, group: int = 0) -> list[int | None]:  # type: ignore[override]
        return self._kv.slots(rid, group) if self._runs(rid) else []

    def held(self, rid: str, group: int) -> Iterable[int]:
        return self._kv.held(rid, group) if self._runs(rid) else []

    def avail(self, pool: str = "") -> int:
        return int(self._kv.avail(pool))

    def free_slots(self, pool: str = "") -> Iterable[int] | None:
        return list(self._kv.free_slots(pool))

    def _runs(self, rid: str) -> bool:
        return rid in [job.rid for job in self._running]

    def _item(self, job: Job, n: int) -> Item:
        item = super()._item(job, n)
        stop = item.start + n
        told = [
            self._state(job, g) if group.kind == "state" else self._table(job, g, stop)
            for g, group in enumerate(self.groups)
        ]
        return Item(*item[:-1], told)

    def _worker_slots(self, job: Job, end: int) -> list[int]:
        return []

    def _table(self, job: Job, g: int, stop: int) -> list[int | None]:
        """The slots of [0, stop) in an attention group, as the worker is told."""
        table: list[int | None] = self._kv.slots(job.rid, g)
        return table[:stop]

    def _state(self, job: Job, g: int) -> Step:
        """What the worker is told to do with a state."""
        step: Step = self._kv.state(job.rid, g)
        return step


class FullAndWindow(GroupedScheduler):
    """Full attention and a window of 3 positions, in one pool."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        groups = Group("full", block_size), Group("window", block_size, reach=3)
        super().__init__(blocks, block_size, budget, running, groups, {"kv": 2 * blocks})


class TwoWindows(GroupedScheduler):
    """Full attention with two windows, of which one has smaller blocks, in one pool."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        small = max(1, block_size // 2)
        groups = Group("full", block_size), Group("window", small, reach=2), Group("window", block_size, reach=5)
        super().__init__(blocks, block_size, budget, running, groups, {"kv": 4 * blocks + 1})


class Chunked(GroupedScheduler):
    """Full attention and chunks of two blocks."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        groups = Group("full", block_size), Group("chunked", block_size, reach=2 * block_size)
        super().__init__(blocks, block_size, budget, running, groups, {"kv": 2 * blocks})


class TwoPools(GroupedScheduler):
    """Full attention, and a window of 5 positions in a pool of its own, which may be scarcer."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        groups = Group("full", block_size), Group("window", block_size, reach=5, pool="window")
        pools = {"kv": blocks, "window": min(blocks, blocks_for(budget + 5, block_size) + 1)}
        super().__init__(blocks, block_size, budget, running, groups, pools)


class FullAndState(GroupedScheduler):
    """Full attention and a state in one pool; the grid of the state is a block of tokens."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        groups = Group("full", block_size), Group("state", block_size)
        # The state that is read, and one behind the token and each of its drafts.
        super().__init__(blocks, block_size, budget, running, groups, {"kv": blocks + self.drafts + 2})


class StatePool(GroupedScheduler):
    """Full attention, a window, and states in a pool of their own on a grid of two blocks."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        groups = (
            Group("full", block_size),
            Group("window", block_size, reach=3),
            Group("state", 2 * block_size, pool="states"),
        )
        pools = {"kv": 2 * blocks, "states": self._states(blocks)}
        super().__init__(blocks, block_size, budget, running, groups, pools)

    def _states(self, blocks: int) -> int:
        """The state that is read, and one behind the token and each of its drafts, or more."""
        return max(self.drafts + 2, blocks // 2)
