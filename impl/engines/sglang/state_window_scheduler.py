"""kv_scheduler with groups on SGLang's Scheduler (0.5.23) over full attention, a window and Mamba states, on CPU.

The scheduler and its states are driven as in state_scheduler.py, its window as in window_scheduler.py. With an extra
buffer a window slides no further than the last checkpoint needs (`swa_retain_floor`), so that its pool has room for the
tokens between two checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang import states, windows
from kvlockstep.impl.engines.sglang.scheduler import Options
from kvlockstep.impl.engines.sglang.state_scheduler import SGLangStateScheduler
from kvlockstep.impl.engines.sglang.states import FULL, STATES, StatePools
from kvlockstep.impl.engines.sglang.windows import WINDOW, WindowPools
from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.kv_scheduler.contract import Batch

REACH = 4


class SGLangStateWindowScheduler(WindowPools, SGLangStateScheduler):
    """One Scheduler over full attention, a window of REACH positions that slides at each token, and states."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int, **options: Any) -> None:
        super().__init__(blocks, block_size, budget, running, **options)
        self._scheduler.is_hybrid_swa = True

    def _memory(self, blocks: int, block_size: int, budget: int, running: int, given: Options) -> tuple[Any, Any, Any]:
        window = Group("window", block_size, reach=REACH, pool=WINDOW)
        self.groups = Group("full", block_size), window, Group("state", block_size, pool=STATES)
        rows = self._state_rows(blocks, block_size, running, given)
        chunks = self.overlap * (budget // block_size * block_size)
        least = windows.pages_of_window(REACH - 1, 1 + self._states["mamba_track_interval"], block_size, chunks)
        self.pools = {FULL: blocks, WINDOW: least, STATES: rows.mamba_pool.size}
        allocator, swa = windows.pages(self.pools, block_size), windows.sglang.ComponentType.SWA
        return states.memory(rows, allocator, block_size, given.core, swa, sliding_window_size=REACH - 1)

    def schedule(self) -> Batch:
        with windows.sliding_every(1):
            batch = super().schedule()
        tables: list[Any] = [item.groups for item in batch.items]
        return batch._replace(
            items=[
                item._replace(groups=[full, self._in_group(full, 1), step])
                for item, (full, step) in zip(batch.items, tables, strict=True)
            ]
        )

    def slots(self, rid: str, group: int = 0) -> list[int | None]:  # type: ignore[override]
        return self._in_group(super().slots(rid), group)

    def held(self, rid: str, group: int) -> Iterable[int] | None:
        return self._held(super().slots(rid), group) if group < 2 else super().held(rid, group)

    def avail(self, pool: str = FULL) -> int:
        return StatePools.avail(self, pool) if pool == STATES else super().avail(pool)

    def free_now(self, pool: str = FULL) -> int:
        return StatePools.free_now(self, pool) if pool == STATES else super().free_now(pool)

    def free_slots(self, pool: str = FULL) -> Iterable[int] | None:
        return StatePools.free_slots(self, pool) if pool == STATES else super().free_slots(pool)


make = SGLangStateWindowScheduler
make_overlap_extra = partial(SGLangStateWindowScheduler, chunk=2, interval=4, overlap=True)
