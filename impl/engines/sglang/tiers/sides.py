"""SGLang's host tier for a tree with more components: a host pool for each of them beside that of full attention.

The host has a pool for each device pool; here they are one tier, whose first units are those of full attention. As in
the engine a load takes device slots for the other components when it is queued, and evicts for them.
Source: sglang/srt/mem_cache/hybrid_cache/hybrid_pool_assembler.py, beside those of hicache.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvlockstep.impl.engines.sglang.tiers.hicache import HOST, HostTier, Part, controllers
from kvlockstep.impl.engines.sglang.tiers.hierarchy import HierarchicalScheduler
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
    """A host pool of `pages` pages for full attention, whose device pool is named `full`, and one for each side."""

    def __init__(self, tree: Any, *given: Any, sides: Sequence[Side], full: str) -> None:
        self._sides, self._full = sides, full
        super().__init__(tree, *given)
        for side in sides:
            setattr(tree.components[side.component], side.attribute, self._pools.entry_map[side.pool].host_pool)

    def _make_pools(self, pages: int, page: int) -> Any:
        pools = super()._make_pools(pages, page)
        for side in self._sides:
            pools.add_entry(self._entry(side))
        return pools

    def _entry(self, side: Side) -> Any:
        return controllers.PoolEntry(
            side.pool,
            host_pool(side.pages, side.page),
            None,
            lambda layer: layer,
            host_evict_fn=lambda slots: self.tree.evict_host(slots, side.component),
            device_evict_fn=side.evict,
            device_alloc_fn=side.allocator.alloc,
            device_free_fn=side.allocator.free,
        )

    def _parts(self) -> list[Part]:
        names = [self._full, *(side.named for side in self._sides)]
        parts, first = list[Part](), 0
        for entry, name in zip(self._pools.entries, names, strict=True):
            parts.append(Part(entry.host_pool, first, (name,)))
            first += entry.host_pool.size // entry.host_pool.page_size
        return parts

    def units(self) -> TierUnits:
        free = [unit for part in self.copies.parts for unit in part.free()]
        return self._of_queues(free, self.total)

    @property
    def total(self) -> int:
        """All units."""
        return sum(part.pool.size // part.pool.page_size for part in self.copies.parts)


class WithSides:
    """A target whose host tier has sides: those of the classes behind the first, and its own."""

    block_size: int
    tiers: dict[str, int]
    pools: dict[str, int]
    _tree: Any
    _allocator: Any
    _host: Any

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.tiers |= {HOST: self._host.total}

    def _make_sides(self) -> list[Side]:
        return []

    def _make_sided(self, tier: Callable[..., HostTier], write_policy: str, *given: Any) -> Any:
        options = {"sides": self._make_sides(), "full": next(iter(self.pools))}
        return tier(self._tree, self._allocator, self.tiers[HOST], self.block_size, write_policy, *given, **options)


class SidedManager(WithSides, TieredManager):
    """A part of managers with groups and a host tier. It is named before the manager with the groups."""

    mixed_hits = True
    groups: Any

    def _make_host(self, pages: int, write_policy: str, restores: int | None, least: int) -> Any:
        return self._make_sided(SidedHostTier, write_policy, restores, least)

    def _loaded(self, admitted: Sequence[Any]) -> list[str]:
        return [req.rid for req in admitted if req.needs_host_load_back()]


class SidedHierarchy(WithSides, HierarchicalScheduler):
    """A part of schedulers with groups and a host tier. It is named before the scheduler with the groups."""

    def _make_host(self, write_policy: str) -> Any:
        return self._make_sided(SidedHostTier, write_policy)
