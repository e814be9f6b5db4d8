"""SGLang's host tier for a tree with a second component: a host pool for it beside that of full attention.

The host has a pool for each device pool; here they are one tier, whose first units are those of full attention. As in
the engine a load takes device slots for the second component when it is queued, and evicts for them.
Source: sglang/srt/mem_cache/hybrid_cache/hybrid_pool_assembler.py, beside those of hicache.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvlockstep.impl.engines.sglang.tiers.hicache import HOST, HostTier, Part, controllers
from kvlockstep.impl.engines.sglang.tiers.host_tier import host_pool
from kvlockstep.impl.engines.sglang.tiers.tiered import TieredManager
from kvlockstep.reference.kv.transfers import TierUnits


class Side(NamedTuple):
    """A component beside full attention, whose device pool is `named`, with `pages` pages of `page` slots on the host.

    `allocator` has the device slots, `evict` makes room for so many; the component keeps its host pool in `attribute`.
    """

    component: Any
    pool: Any
    attribute: str
    named: str
    pages: int
    page: int
    allocator: Any
    evict: Callable[[int], None]


class SidedHostTier(HostTier):
    """A host pool of `pages` pages for full attention, and one for a `side`."""

    def __init__(self, tree: Any, allocator: Any, pages: int, side: Side, full: str, page: int, *given: Any) -> None:
        self._side, self._full = side, full
        super().__init__(tree, allocator, pages, page, *given)
        setattr(tree.components[side.component], side.attribute, self._pools.entry_map[side.pool].host_pool)

    def _make_pools(self, pages: int, page: int) -> Any:
        pools, side = super()._make_pools(pages, page), self._side
        entry = controllers.PoolEntry(
            side.pool,
            host_pool(side.pages, side.page),
            None,
            lambda layer: layer,
            host_evict_fn=lambda slots: self.tree.evict_host(slots, side.component),
            device_evict_fn=side.evict,
            device_alloc_fn=side.allocator.alloc,
            device_free_fn=side.allocator.free,
        )
        pools.add_entry(entry)
        return pools

    def _parts(self) -> list[Part]:
        full, other = (entry.host_pool for entry in self._pools.entries)
        return [Part(full, 0, (self._full,)), Part(other, full.size // self._page, (self._side.named,))]

    def units(self) -> TierUnits:
        free = [unit for part in self.copies.parts for unit in part.free()]
        return self._of_queues(free, self.total)

    @property
    def total(self) -> int:
        """All units."""
        return sum(part.pool.size // part.pool.page_size for part in self.copies.parts)


class SidedManager(TieredManager):
    """A part of managers with groups and a host tier. It is named before the manager with the groups."""

    mixed_hits = True
    groups: Any
    pools: dict[str, int]
    _host: SidedHostTier

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.tiers = {HOST: self._host.total}

    def _make_host(self, pages: int, write_policy: str, restores: int | None, least: int) -> HostTier:
        full = next(iter(self.pools))
        given = pages, self._make_side(), full, self.block_size, write_policy, restores, least
        return SidedHostTier(self._tree, self._allocator, *given)

    def _make_side(self) -> Side:
        raise NotImplementedError

    def _loaded(self, admitted: Sequence[Any]) -> list[str]:
        return [req.rid for req in admitted if req.needs_host_load_back()]
