"""kv_scheduler with groups and a tier: the blocks of every group are stored, and loaded where one of them is missing.

A unit of the tier holds a block of any group. What is loaded is what the longest hit needs that pool and tier can serve
together: of each group the blocks that are read first behind it, without those that the pool still has.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from kvlockstep.reference.kv_manager.groups.pool import Key, Pool
from kvlockstep.reference.kv_manager.groups.request import to_hit
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

Block = tuple[str, int]


class TieredGroups(GroupedScheduler, TieredScheduler):
    """Meets kv_scheduler.contract.KVSchedulerTarget with groups and transfers. The tier is larger than the pools."""

    mixed_hits = True

    def _tier_size(self, blocks: int) -> int:
        return 4 * blocks

    def limbo(self, pool: str = "") -> int:
        requests = self._kv._live.values()
        held = {self._block(g, n) for request in requests for g in range(len(self.groups)) for n in request.held(g)}
        named = pool or self.groups[0].pool
        return sum(block[0] == named for block in self._pinned() - held)

    def _filled(self, job: Job, first: int) -> Iterable[tuple[Key, Block]]:
        filled = []
        for g, group in enumerate(self.groups):
            for place in range(first // group.block_size, job.computed // group.block_size):
                number = self._kv._find(g, job.tokens, job.extra_key, place)
                if number is not None:
                    filled.append((self._kv._key(g, job.tokens, job.extra_key, place), self._block(g, number)))
        return filled

    def _load(self, job: Job) -> bool:
        """Submits a load of what the tier has of the longest hit, if the pool alone has a shorter one.

        What the pool has of it is kept as well: without it the loaded blocks are no hit.
        """
        keys = self._longest(job)
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

    def _longest(self, job: Job) -> list[Key]:
        """The keys of all blocks of the longest hit that pool and tier serve together."""
        for cached in range(len(job.tokens) - 1, self._kv._lookup(job.tokens, job.extra_key), -1):
            keys = self._keys(job, cached)
            if keys and all(key in self._pool(key).cached or self._tier.find(key) is not None for key in keys):
                return keys
        return []

    def _keys(self, job: Job, cached: int) -> list[Key]:
        """The keys of the blocks that a hit of so many tokens needs; none if it would end within a block."""
        keys: list[Key] = []
        for g, group in enumerate(self.groups):
            places = to_hit(group, cached)
            if places.stop * group.block_size > cached or (group.kind == "state" and cached % group.block_size):
                return []
            keys += [self._kv._key(g, job.tokens, job.extra_key, place) for place in places]
        return keys

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
        """Names blocks as a target with these pools does: with several, the pool stands in front of a pair."""
        named: list[tuple[Any, ...]] = []
        for source, target in pairs:
            pool, number = target if kind == "load" else source
            pair = (source, number) if kind == "load" else (number, target)
            named.append((pool, *pair) if self.pools else pair)
        return super()._submit(kind, named, *rids, before=before)

    def _pool(self, key: Key) -> Pool:
        pool: Pool = self._kv._pool(key[0])
        return pool

    def _block(self, g: int, number: int) -> Block:
        return self.groups[g].pool, number


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
