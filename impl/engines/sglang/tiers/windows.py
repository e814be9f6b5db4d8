"""kv_manager with groups and a tier on SGLang's prefix tree (0.5.23): a sliding window over the host tier.

The calls are those of tiered.py here and of windows.py of the engine. What is stored of a window is what a match at the
end of a node would read. An admission loads what its match lacks on the device: of full attention, of the window, or of
both, in one transfer. A window may be loaded behind a prefix that the device has.
Source: sglang/srt/mem_cache/unified_cache/components/swa.py, beside those of tiered.py, sides.py and windows.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang.tiers.hicache import controllers
from kvlockstep.impl.engines.sglang.tiers.sides import Side, SidedManager
from kvlockstep.impl.engines.sglang.windows import FULL, WINDOW, SGLangWindowManager, sglang


class TieredWindowManager(SidedManager, SGLangWindowManager):
    """Full attention and a window, with a host tier."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._tree.tree_core.has_swa_host_pool = True

    def limbo(self, pool: str = FULL) -> int:
        group = (FULL, WINDOW).index(pool)
        kept = self._in_group(list(self._host.kept()), group)
        held = {slot for rid in self._running for slot in self.slots(rid, group)}
        return len({slot // self.block_size for slot in kept if slot is not None and slot not in held})

    def _make_side(self) -> Side:
        window = self._allocator.swa_attn_allocator
        component, pool = sglang.ComponentType.SWA, controllers.PoolName.SWA
        sizes = self.pools[WINDOW], self.block_size
        return Side(component, pool, "_swa_kv_pool_host", WINDOW, *sizes, window, self._evict_window)

    def _evict_window(self, slots: int) -> None:
        """As `_evict_swa_for_device_alloc` of hybrid_pool_assembler.py, which cannot be imported without a device."""
        missing = slots - self._allocator.swa_available_size()
        if missing > 0:
            self._tree.evict_for_alloc(sglang.EvictParams(swa_num_tokens=missing))


def _make(core: str, write_policy: str, blocks: int, block_size: int) -> TieredWindowManager:
    """A window of 4 positions, in a scarcer pool."""
    window = max(4, blocks * 2 // 3)
    return TieredWindowManager(blocks, block_size, core, write_policy, reach=4, window_blocks=window)


make_through = partial(_make, "python", "write_through")
make_through_rust = partial(_make, "rust", "write_through")
make_back_rust = partial(_make, "rust", "write_back")
