"""kv_scheduler with groups and transfers on SGLang's Scheduler (0.5.23): a window over the host tier, on CPU.

The scheduler is driven as in window_scheduler.py and hierarchy.py, and its host tier is that of windows.py here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang.tiers.hierarchy import DrainingScheduler
from kvlockstep.impl.engines.sglang.tiers.sides import SidedHierarchy
from kvlockstep.impl.engines.sglang.tiers.windows import WithWindow
from kvlockstep.impl.engines.sglang.window_scheduler import SGLangWindowScheduler
from kvlockstep.impl.engines.sglang.windows import FULL


class UnparkedScheduler(DrainingScheduler):
    """Without sglang-window-parked-under-store and sglang-scheduler-aborted-under-store."""

    def get_new_batch_prefill(self, running_batch: Any) -> Any:
        windows = self.token_to_kv_pool_allocator.swa_available_size() + self.tree_cache.swa_evictable_size()
        if self.chunked_req is not None and windows <= self.page_size:
            self.tree_cache.writing_check(write_back=True)
        return super().get_new_batch_prefill(running_batch)


class WindowHierarchy(WithWindow, SidedHierarchy, SGLangWindowScheduler):
    """A Scheduler over full attention and a window, with a host tier of nearly as much room for both."""

    _kind: Callable[..., Any] = UnparkedScheduler

    def limbo(self, pool: str = FULL) -> int:
        return self._in_limbo(pool, self._live())


make = WindowHierarchy
make_overlap = partial(WindowHierarchy, core="rust", overlap=True)
make_overlap_back = partial(make_overlap, write_policy="write_back")
make_overlap_wide = partial(make_overlap, reach=7, interval=3, releases=True)
make_parked = partial(WindowHierarchy, kind=DrainingScheduler)
