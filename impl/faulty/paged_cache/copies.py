"""Faults of paged_cache: copy-on-write."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.paged_cache.pool import WithFaultyPool
from kvlockstep.reference.paged_cache import PagedCache
from kvlockstep.reference.paged_cache.contract import Growth
from kvlockstep.reference.paged_cache.pool import PagedPool


@fault("paged-copies-tables", law="content_equality", seen=("seed 004",))
class CopiesTablesOnly(PagedCache):
    """Copy-on-write changes the table but reports no blocks to copy."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        growth = super().append(sequence, tokens)
        return growth._replace(blocks=[t for _, t in growth.copies] + growth.blocks, copies=[])


@fault("paged-copies-backwards", law="content_equality", seen=("LMCache#4921",))
class CopiesBackwards(PagedCache):
    """Copy-on-write returns its pairs as (target, source)."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        growth = super().append(sequence, tokens)
        return growth._replace(copies=[(target, source) for source, target in growth.copies])


@fault("paged-copies-full", law="agreement", seen=("seed 004",))
class CopiesFullBlock(PagedCache):
    """Appending behind a full shared block copies that block, too."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        length, table = self._find("append", sequence)
        full = length > 0 and length % self._size == 0 and self._pool.blocks[table[-1]].holders > 1
        if not full or tokens < 1 or len(self._pool.free) < 1 + self._blocks_for(tokens):
            return super().append(sequence, tokens)
        source, target = table[-1], self._pool.take(len(table) - 1, 1)[0]
        self._pool.release([source])
        self._pool.counts["copies"] += 1
        self._tables[sequence] = [*table[:-1], target]
        return super().append(sequence, tokens)._replace(copies=[(source, target)])


@fault("paged-writes-shared", law="write_isolation", seen=("atlas#692", "vllm#417"))
class WritesShared(WithFaultyPool):
    """Appending writes a block that other sequences share, without a copy."""

    class pool_type(PagedPool):
        def frozen(self, block: int) -> bool:
            return block in self.registered.values()


@fault("paged-writes-registered", law="write_isolation", seen=("mlx-lm#1547",))
class WritesRegistered(WithFaultyPool):
    """Appending after a cut writes a registered block in place."""

    class pool_type(PagedPool):
        def frozen(self, block: int) -> bool:
            idle = not self.blocks[block].holders
            return super().frozen(block) if idle else self.blocks[block].holders > 1
