"""Faults of paged_cache: hit counts, utilization, fragmentation and memory."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.paged_cache.pool import WithFaultyPool
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.paged_cache import PagedCache
from kvlockstep.reference.paged_cache.contract import Allocation, Growth, PagedStatistics
from kvlockstep.reference.paged_cache.pool import PagedPool


@fault("paged-frees-per-entry", law="accounting", seen=("seed 004",))
class DeallocationsPerEntry(PagedCache):
    """Each table entry that is freed counts as a freed block, even if the block is still shared."""

    def free(self, sequence: int) -> None:
        _, table = self._find("free", sequence)
        shared = sum(self._pool.blocks[block].holders > 1 for block in table)
        super().free(sequence)
        self._pool.counts["deallocations"] += shared


@fault("paged-fork-counts-hit", law="accounting", seen=("seed 004",))
class ForkCountsHit(PagedCache):
    """A fork counts as a hit."""

    def fork(self, source: int, child: int, tokens: int | None = None) -> list[int]:
        table = super().fork(source, child, tokens)
        self._pool.counts["hits"] += 1
        return table


@fault("paged-copy-uncounted", law="accounting", seen=("seed 004",))
class CopyIsNoAllocation(PagedCache):
    """The new block of a copy-on-write is not counted as allocated."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        growth = super().append(sequence, tokens)
        self._pool.counts["allocations"] -= len(growth.copies)
        return growth


@fault("paged-cached-is-used", law="accounting", seen=("seed 004", "imp#1120"))
class CachedIsUsed(PagedCache):
    """Utilization counts idle cached blocks as used."""

    def statistics(self) -> PagedStatistics:
        s = super().statistics()
        return s._replace(utilisation=(s.held + s.cached) / s.blocks if s.blocks else 0.0)


@fault("paged-shared-twice", law="accounting", seen=("seed 004",))
class FragmentationPerEntry(PagedCache):
    """Fragmentation counts a shared block once for each table."""

    def statistics(self) -> PagedStatistics:
        room = sum(len(table) for table in self._tables.values()) * self._size
        unfilled = room - sum(self._lengths.values())
        return super().statistics()._replace(fragmentation=unfilled / room if room else 0.0)


@fault("paged-two-bytes", law="agreement", seen=("seed 004",))
class TwoBytes(PagedCache):
    """Memory is computed as if every dtype had two bytes."""

    def __init__(self, blocks: int, block_size: int, policy: str, shape: KVShape) -> None:
        super().__init__(blocks, block_size, policy, shape._replace(dtype="bfloat16"))


@fault("paged-hits-behind-hole", law="accounting", seen=("Megatron-LM#6416 (b)",))
class HitsBehindHole(PagedCache):
    """Known keys behind the end of the hit count as hits, too."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        known = sum(key in self._pool.registered for key in keys)
        used = len(self.lookup(keys))
        answer = super().allocate(sequence, tokens, keys)
        self._pool.counts["hits"] += known - used
        self._pool.counts["misses"] -= known - used
        return answer


@fault("paged-evict-uncounted", law="accounting", seen=("seed 004",))
class EvictionFreesNothing(WithFaultyPool):
    """An evicted block does not count as freed."""

    class pool_type(PagedPool):
        def evict(self, block: int) -> None:
            super().evict(block)
            self.counts["deallocations"] -= 1


@fault("paged-lookup-counts", law="accounting", seen=("seed 004",))
class LookupCounts(PagedCache):
    """A lookup without an allocation counts as a hit or a miss."""

    def lookup(self, keys: Sequence[int]) -> list[int]:
        hit = super().lookup(keys)
        self._pool.counts["hits" if hit else "misses"] += 1
        return hit


@fault("paged-partial-blocks", law="accounting", seen=("seed 004",))
class FragmentationInBlocks(PagedCache):
    """Fragmentation is the share of blocks that are not full, whatever their fill."""

    def statistics(self) -> PagedStatistics:
        blocks = sum(len(table) for table in self._tables.values())
        partial = sum(length % self._size > 0 for length in self._lengths.values())
        return super().statistics()._replace(fragmentation=partial / blocks if blocks else 0.0)
