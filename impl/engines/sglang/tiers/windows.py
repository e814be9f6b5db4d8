"""kv_manager with groups and a tier on SGLang's prefix tree (0.5.23): a sliding window over the host tier.

The calls are those of tiered.py here and of windows.py of the engine. What is stored of a window is what a match at the
end of a node would read. An admission loads what its match lacks on the device: of full attention, of the window, or of
both, in one transfer. A window may be loaded behind a prefix that the device has.
Source: sglang/srt/mem_cache/unified_cache/components/swa.py, beside those of tiered.py, sides.py and windows.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang.tiers.hicache import HOST, controllers
from kvlockstep.impl.engines.sglang.tiers.sides import Side, SidedManager, WithSides
from kvlockstep.impl.engines.sglang.windows import FULL, WINDOW, SGLangWindowManager, sglang


class PinningAdder(sglang.PrefillAdder):  # type: ignore[misc]
    """Without sglang-window-load-uncounted: no window that a request has matched counts as room for that request."""

    def add_one_req(self, req: Any, *given: Any, **options: Any) -> Any:
        window = self.tree_cache.lock(req.best_match_node, skip_lock_components=[sglang.ComponentType.FULL])
        try:
            return super().add_one_req(req, *given, **options)
        finally:
            self.tree_cache.unlock(window)


class WithWindow(WithSides):
    """A target whose host tier keeps windows, and has room for so many."""

    windows_on_host = 0
    slots: Any
    _in_group: Any

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._tree.tree_core.has_swa_host_pool = True

    def _make_sides(self) -> list[Side]:
        """As much of the window in a host page as of full attention."""
        window = self._allocator.swa_attn_allocator
        component, pool = sglang.ComponentType.SWA, controllers.PoolName.SWA
        pages = self.pools[WINDOW] * self.tiers[HOST] // self.pools[FULL]
        pages = max(pages, self.windows_on_host * self._tree.components[component].full_window_pages)
        given = pages, self.block_size, window, self._evict_window
        return [*super()._make_sides(), Side(component, pool, "_swa_kv_pool_host", WINDOW, *given)]

    def _in_limbo(self, pool: str, live: Iterable[str]) -> int:
        """Blocks of a pool on the paths that transfers keep, of no request that is `live`."""
        group = (FULL, WINDOW).index(pool)
        kept = self._in_group(list(self._host.kept()), group)
        held = {slot for rid in live for slot in self.slots(rid, group)}
        return len({slot // self.block_size for slot in kept if slot is not None and slot not in held})

    def _evict_window(self, slots: int) -> None:
        """As `_evict_swa_for_device_alloc` of hybrid_pool_assembler.py, which cannot be imported without a device."""
        missing = slots - self._allocator.swa_available_size()
        if missing > 0:
            self._tree.evict_for_alloc(sglang.EvictParams(swa_num_tokens=missing))


class TieredWindowManager(WithWindow, SidedManager, SGLangWindowManager):
    """Full attention and a window, with a host tier. Without `pins` as in the engine: sglang-window-load-uncounted."""

    def __init__(self, *given: Any, pins: bool = True, **options: Any) -> None:
        super().__init__(*given, **options)
        self._adder_type = PinningAdder if pins else sglang.PrefillAdder

    def limbo(self, pool: str = FULL) -> int:
        return self._in_limbo(pool, self._running)


def _make(
    core: str,
    write_policy: str,
    blocks: int,
    block_size: int,
    reach: int = 4,
    window_blocks: int | None = None,
    **options: Any,
) -> TieredWindowManager:
    """A window of `reach` positions, in a scarcer pool."""
    options |= {"reach": reach, "window_blocks": window_blocks or max(4, blocks * 2 // 3)}
    return TieredWindowManager(blocks, block_size, core, write_policy, **options)


make_through = partial(_make, "python", "write_through")
make_through_rust = partial(_make, "rust", "write_through")
make_back_rust = partial(_make, "rust", "write_back")
# The host pool has twice the room of the device pool, as by default.
make_pinned = partial(_make, "rust", "write_through", reach=6, window_blocks=12, ratio=2)
make_unpinned = partial(make_pinned, pins=False)
