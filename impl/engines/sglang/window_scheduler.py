"""kv_scheduler with groups on SGLang's Scheduler (0.5.23) over full attention and a sliding window, on CPU.

The scheduler is driven as in scheduler.py, over the two pools of windows.py. The worker finds a slot of the window by
the engine's mapping, from the slot of full attention. It does so in the forward, and what the scheduler writes next
waits for that (`_apply_war_barrier`), so that the mapping is that of the launch.

The window of a running request slides in `alloc_for_decode`; what it has hit stays locked for as long as it runs, or
with `releases` until its window has left it (SGLANG_OPT_RELEASE_PREFILL_SWA). A chunk that finds no room in a pool is
parked, and the running requests go on.
Source: sglang/srt/managers/schedule_batch.py (maybe_evict_swa), mem_cache/prefill_budget.py and
model_executor/pool_configurator.py (compute_swa_request_cap), beside those of scheduler.py and windows.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang import windows
from kvlockstep.impl.engines.sglang.real_scheduler import Options, RepairedScheduler
from kvlockstep.impl.engines.sglang.scheduler import DEFAULT_ESTIMATE, LOWEST_RATIO, SGLangScheduler
from kvlockstep.impl.engines.sglang.windows import FULL, WINDOW, WindowPools
from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.kv_scheduler.contract import Batch, Item


class SGLangWindowScheduler(WindowPools, SGLangScheduler):
    """One Scheduler over full attention and a window of `reach` positions, which slides every `interval` tokens.

    By default the engine has an interval of 128 tokens, more than an episode.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        reach: int = 4,
        interval: int = 1,
        releases: bool = False,
        **options: Any,
    ) -> None:
        self.groups = Group("full", block_size), Group("window", block_size, reach=reach, pool=WINDOW)
        self._interval = interval
        self._releases = releases
        super().__init__(blocks, block_size, budget, running, **options)
        self._scheduler.is_hybrid_swa = True

    def _memory(self, blocks: int, block_size: int, budget: int, running: int, given: Options) -> tuple[Any, Any, Any]:
        reach, chunks = self.groups[1].reach, self.overlap * (budget // block_size * block_size)
        least = windows.pages_of_window(reach - 1, self._interval, block_size, chunks, given.drafts + 1)
        self.pools = {FULL: blocks, WINDOW: least}
        return windows.memory(self.pools, block_size, given.core, running, reach, is_eagle=given.eagle)

    def schedule(self) -> Batch:
        releasing = windows.environment.envs.SGLANG_OPT_RELEASE_PREFILL_SWA.override(self._releases)
        with windows.sliding_every(self._interval), releasing:
            return super().schedule()

    def slots(self, rid: str, group: int = 0) -> list[int | None]:  # type: ignore[override]
        return self._in_group(super().slots(rid), group)

    def held(self, rid: str, group: int) -> Iterable[int] | None:
        return self._held(super().slots(rid), group)

    def _item(self, *asked: Any) -> Item:
        item = super()._item(*asked)
        return item._replace(slots=(), groups=[self._in_group(list(item.slots), g) for g in range(len(self.groups))])


class RepairedWindowScheduler(RepairedScheduler):
    """Without sglang-window-parked-chunk as well: a chunk finds the page that its budget asks for beside its own."""

    beside = 1


make = SGLangWindowScheduler
make_overlap = partial(SGLangWindowScheduler, overlap=True)
make_overlap_python = partial(make_overlap, core="python")
make_overlap_wide = partial(make_overlap, reach=7, interval=3, releases=True)
make_mixed = partial(make_overlap, mixed=True, estimate=DEFAULT_ESTIMATE, conservativeness=LOWEST_RATIO)
make_mixed_repaired = partial(SGLangWindowScheduler, mixed=True, kind=RepairedWindowScheduler)
make_overlap_mixed_repaired = partial(make_mixed_repaired, overlap=True)
