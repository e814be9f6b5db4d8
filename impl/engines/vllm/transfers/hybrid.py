"""kv_scheduler with groups and transfers on vLLM's Scheduler (0.33.0) with SimpleCPUOffloadConnector.

The scheduler and its groups are those of hybrid_scheduler.py, the connector is that of simple_offloading.py. It
supports the hybrid manager (`SupportsHMA`), and its tier is a block pool with a hybrid coordinator of its own. A block
of any group is stored once its tokens are computed, that of a window also when it has slid off and can still be hit.
What is loaded is what the tier's coordinator finds behind the prefix that the pool has.
"""

from __future__ import annotations

from functools import partial

from kvlockstep.impl.engines.vllm.hybrid_scheduler import FULL, STATE, TWO_SIZES, WINDOW, WINDOWS, VllmHybridScheduler
from kvlockstep.impl.engines.vllm.transfers.simple_offloading import SimpleOffloadingScheduler


class HybridOffloadingScheduler(SimpleOffloadingScheduler, VllmHybridScheduler):
    """A hybrid scheduler with a SimpleCPUOffloadConnector. The options are those of both."""

    mixed_hits = False

    def slots(self, rid: str, group: int = 0) -> list[int | None]:  # type: ignore[override]
        return VllmHybridScheduler.slots(self, rid, group) if self._lives(rid) else []

    def held(self, rid: str, group: int) -> list[int]:
        return super().held(rid, group) if self._lives(rid) else []

    def limbo(self) -> int:
        return len(self._blocks_in_limbo())

    def _lives(self, rid: str) -> bool:
        request = self._scheduler.requests.get(rid)
        return request is not None and not request.is_finished()


make_window = partial(HybridOffloadingScheduler, groups=WINDOW)
make_windows = partial(HybridOffloadingScheduler, groups=WINDOWS)
make_two_sizes = partial(HybridOffloadingScheduler, groups=TWO_SIZES)
make_state = partial(HybridOffloadingScheduler, groups=(FULL, STATE))
make_state_window = partial(HybridOffloadingScheduler, groups=(*WINDOW, STATE))
make_window_lazy = partial(HybridOffloadingScheduler, groups=WINDOW, lazy=True)
make_window_async = partial(HybridOffloadingScheduler, groups=WINDOW, asynchronous=True)
