"""kv_scheduler with groups and transfers on SGLang's Scheduler (0.5.23): a window over the host tier, on CPU.

The scheduler is driven as in window_scheduler.py and hierarchy.py, and its host tier is that of windows.py here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang.tiers.hierarchy import DrainingScheduler
from kvlockstep.impl.engines.sglang.tiers.sides import SidedHierarchy
from kvlockstep.impl.engines.sglang.tiers.windows import PinningAdder, WithWindow
from kvlockstep.impl.engines.sglang.window_scheduler import SGLangWindowScheduler
from kvlockstep.impl.engines.sglang.windows import FULL


class PinningScheduler(DrainingScheduler):
    """Without sglang-window-load-uncounted and sglang-scheduler-aborted-under-store.

    Nor is a chunk parked because stores keep windows: decodes would take the room that its prompt was promised.
    """

    def get_prefill_adder_class(self) -> type:
        return PinningAdder

    def get_new_batch_prefill(self, running_batch: Any) -> Any:
        windows = self.token_to_kv_pool_allocator.swa_available_size() + self.tree_cache.swa_evictable_size()
        if self.chunked_req is not None and windows <= self.page_size:
            self.tree_cache.writing_check(write_back=True)
        return super().get_new_batch_prefill(running_batch)


class WindowHierarchy(WithWindow, SidedHierarchy, SGLangWindowScheduler):
    """A Scheduler over full attention and a window, with a host tier of nearly as much room for both."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **{"kind": PinningScheduler} | options)
        self._tree.tree_core.has_swa_host_pool = True

    def limbo(self, pool: str = FULL) -> int:
        return self._in_limbo(pool, self._live())


make = WindowHierarchy
make_overlap = partial(WindowHierarchy, core="rust", overlap=True)
make_overlap_back = partial(make_overlap, write_policy="write_back")
make_overlap_wide = partial(make_overlap, reach=7, interval=3, releases=True)
