"""kv_manager with groups and a tier on SGLang's prefix tree (0.5.23): a sliding window over the host tier.

The calls are those of tiered.py and windows.py of the engine. The host has a pool for each device pool; here they are
one tier, whose first units are those of full attention. What is stored of a window is what a match at the end of a node
would read. An admission loads what its match lacks on the device: of full attention, of the window, or of both, in one
transfer. A window may be loaded behind a prefix that the device has.
Source: sglang/srt/mem_cache/unified_cache/components/swa.py and hybrid_cache/hybrid_pool_assembler.py, beside those of
tiered.py and windows.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang.tiers.hicache import HOST, HostTier, Part, controllers
from kvlockstep.impl.engines.sglang.tiers.host_tier import host_pool
from kvlockstep.impl.engines.sglang.tiers.tiered import TieredManager
from kvlockstep.impl.engines.sglang.windows import FULL, WINDOW, SGLangWindowManager, sglang
from kvlockstep.reference.kv.transfers import TierUnits

SWA: Any = sglang.ComponentType.SWA


class WindowHostTier(HostTier):
    """A host pool of `pages` pages for full attention, and one of `window_pages` for the window."""

    def __init__(self, tree: Any, allocator: Any, pages: int, window_pages: int, page: int, *given: Any) -> None:
        self._window_pages, self._allocator = window_pages, allocator
        super().__init__(tree, allocator, pages, page, *given)
        tree.components[SWA]._swa_kv_pool_host = self._pools.entry_map[controllers.PoolName.SWA].host_pool
        tree.tree_core.has_swa_host_pool = True

    def _make_pools(self, pages: int, page: int) -> Any:
        pools = super()._make_pools(pages, page)
        window = self._allocator.swa_attn_allocator
        entry = controllers.PoolEntry(
            controllers.PoolName.SWA,
            host_pool(self._window_pages, page),
            None,
            lambda layer: layer,
            host_evict_fn=lambda slots: self.tree.evict_host(slots, SWA),
            device_evict_fn=self._evict_window,
            device_alloc_fn=window.alloc,
            device_free_fn=window.free,
        )
        pools.add_entry(entry)
        return pools

    def _parts(self) -> list[Part]:
        full, window = (entry.host_pool for entry in self._pools.entries)
        return [Part(full, 0, (FULL,)), Part(window, full.size // self._page, (WINDOW,))]

    def _evict_window(self, slots: int) -> None:
        """As `_evict_swa_for_device_alloc` of hybrid_pool_assembler.py, which cannot be imported without a device."""
        missing = slots - self._allocator.swa_available_size()
        if missing > 0:
            self.tree.evict_for_alloc(sglang.EvictParams(swa_num_tokens=missing))

    def units(self) -> TierUnits:
        free = [unit for part in self.copies.parts for unit in part.free()]
        return self._of_queues(free, sum(part.pool.size for part in self.copies.parts) // self._page)


class TieredWindowManager(TieredManager, SGLangWindowManager):
    """Full attention and a window, with a host tier."""

    mixed_hits = True

    def __init__(self, blocks: int, block_size: int, core: str, *given: Any, **options: Any) -> None:
        super().__init__(blocks, block_size, core, *given, **options)
        self.tiers = {HOST: sum(part.pool.size for part in self._host.copies.parts) // block_size}

    def limbo(self, pool: str = FULL) -> int:
        group = (FULL, WINDOW).index(pool)
        kept = self._in_group(list(self._host.kept()), group)
        held = {slot for rid in self._running for slot in self.slots(rid, group)}
        return len({slot // self.block_size for slot in kept if slot is not None and slot not in held})

    def _make_host(self, pages: int, write_policy: str, restores: int | None, least: int) -> HostTier:
        given = pages, self.pools[WINDOW], self.block_size, write_policy, restores, least
        return WindowHostTier(self._tree, self._allocator, *given)

    def _loaded(self, admitted: Sequence[Any]) -> list[str]:
        return [req.rid for req in admitted if req.host_loaded_length or req.swa_host_hit_length]


def _make(core: str, write_policy: str, blocks: int, block_size: int) -> TieredWindowManager:
    """A window of 4 positions, in a scarcer pool."""
    pages = max(4, blocks * 2 // 3)
    return TieredWindowManager(blocks, block_size, core, write_policy, reach=4, window_blocks=pages)


make_through = partial(_make, "python", "write_through")
make_through_rust = partial(_make, "rust", "write_through")
make_back_rust = partial(_make, "rust", "write_back")
