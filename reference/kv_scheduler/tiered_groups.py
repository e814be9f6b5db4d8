"""kv_scheduler with groups and a tier: the blocks of every group are stored, and loaded where one of them is missing.

A unit of the tier holds a block of any group. What is loaded is what the longest hit needs that pool and tier can serve
together: of each group the blocks that are read first behind it, without those that the pool still has.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from kvlockstep.reference.kv_manager.groups.in_tier import Block, block_of, filled, held_blocks, longest_hit, named
from kvlockstep.reference.kv_manager.groups.pool import Key, Pool
from kvlockstep.reference.kv_scheduler.grouped import (
    FullAndState,
    FullAndWindow,
    GroupedScheduler,
    StatePool,
    TwoPools,
    TwoWindows,
)
from kvlockstep.reference.kv_scheduler.scheduler import Job
from kvlockstep.reference.kv_scheduler.tiered import Load, TieredScheduler


class TieredGroups(GroupedScheduler, TieredScheduler):
    """Meets kv_scheduler.contract.KVSchedulerTarget with groups and transfers. The tier is larger than the pools."""

    mixed_hits = True

    def _tier_size(self, blocks: int) -> int:
        return 4 * blocks

    def limbo(self, pool: str = "") -> int:
        of_pool = pool or self.groups[0].pool
        return sum(block[0] == of_pool for block in self._pinned() - held_blocks(self._kv))

    def _filled(self, job: Job, first: int) -> Iterable[tuple[Key, Block]]:
        return filled(self._kv, job.tokens, job.extra_key, first, job.computed)

    def _load(self, job: Job) -> bool:
        """Submits a load of what the tier has of the longest hit, if the pool alone has a shorter one.

        What the pool has of it is kept as well: without it the loaded blocks are no hit.
        """
        _, keys = longest_hit(self._kv, self._tier, job.tokens, job.extra_key)
        found = {key: self._pool(key).cached[key] for key in keys if key in self._pool(key).cached}
        wanted = [key for key in keys if key not in found]
        hit = [self._block(key[0], number) for key, number in found.items()]
        if not wanted or not self._fits(wanted, hit):
            return False
        for block in hit:
            self._hold(block)
        units = [self._tier.find(key) for key in wanted]
        for key in wanted:
            self._tier.begin_load(key)
        blocks = [self._block(key[0], self._pool(key).take()) for key in wanted]
        self._begin(Load(job.rid, wanted, [unit for unit in units if unit is not None], blocks, hit))
        return True

    def _begin(self, load: Load) -> None:
        self._loads[self._submit("load", list(zip(load.units, load.blocks, strict=True)), load.rid)] = load

    def _fits(self, wanted: list[Key], hit: list[Block]) -> bool:
        """True if each pool has room for what is loaded into it, beside what it keeps."""
        need = [self.groups[key[0]].pool for key in wanted]
        pools: dict[str, Pool] = self._kv._pools
        return all(
            need.count(name) <= pool.room([number for other, number in hit if other == name])
            for name, pool in pools.items()
        )

    def _publish_loaded(self, key: Key, block: Block) -> None:
        self._pool(key).publish(key, block[1])

    def _hold(self, block: Block) -> None:
        self._kv._pools[block[0]].hold(block[1])

    def _drop(self, block: Block) -> None:
        self._kv._pools[block[0]].drop(block[1])

    def _submit(self, kind: str, pairs: list[tuple[Any, ...]], *rids: str, before: bool = False) -> Hashable:
        return super()._submit(kind, named(self._kv, kind, pairs), *rids, before=before)

    def _pool(self, key: Key) -> Pool:
        pool: Pool = self._kv._pool(key[0])
        return pool

    def _block(self, g: int, number: int) -> Block:
        return block_of(self._kv, g, number)


class TieredState(FullAndState, TieredGroups):
    """Full attention and a state, in one pool."""


class TieredWindow(FullAndWindow, TieredGroups):
    """Full attention and a window, in one pool."""


class TieredWindows(TwoWindows, TieredGroups):
    """Full attention with two windows, in one pool."""

    def _tier_size(self, blocks: int) -> int:
        return 8 * blocks


class TieredPools(TwoPools, TieredGroups):
    """Full attention, and a window in a pool of its own."""


class TieredStates(StatePool, TieredGroups):
    """Full attention, a window, and states in a pool of their own."""
