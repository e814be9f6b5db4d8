"""Faults of paged_cache: which blocks are evicted, and how many."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.paged_cache.pool import WithFaultyPool
from kvlockstep.reference.errors import OutOfSlots
from kvlockstep.reference.paged_cache import PagedCache
from kvlockstep.reference.paged_cache.contract import Allocation, Growth
from kvlockstep.reference.paged_cache.pool import PagedPool


@fault("paged-evicts-live", law="eviction_safety", seen=("seed 004",))
class EvictsLive(PagedCache):
    """Eviction takes a block that one sequence holds, out of that sequence's table."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        missing = self._blocks_for(tokens) - len(self.lookup(keys)) - len(self._pool.free) - len(self._pool.idle())
        for table in self._tables.values():
            for block in [b for b in table if self._pool.blocks[b].holders == 1][: max(0, missing)]:
                table.remove(block)
                self._pool.release([block])
                missing -= 1
        return super().allocate(sequence, tokens, keys)


@fault("paged-evicts-own-hit", law="structure", seen=("vllm#10507",))
class EvictsOwnHit(PagedCache):
    """An allocation takes new blocks before it holds its hit, so it may evict that hit."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        hit, idle = self.lookup(keys), self._pool.idle()
        need = self._blocks_for(tokens) - len(hit)
        others = len(self._pool.free) + sum(block not in hit for block in idle)
        if tokens < len(keys) * self._size or need <= others:
            return super().allocate(sequence, tokens, keys)
        self._check_new("allocate", sequence)
        self._pool.require("allocate", need)
        table = hit + self._pool.take(len(hit), need)
        self._pool.hold(hit)
        self._tables[sequence], self._lengths[sequence] = table, tokens
        self._pool.counts["hits"] += len(hit)
        self._pool.counts["misses"] += len(keys) - len(hit)
        return Allocation(len(hit) * self._size, list(table))


@fault("paged-fifo-as-lru", law="eviction_order", seen=("mutant",))
class FifoAsLru(WithFaultyPool):
    """The fifo policy evicts the block that was released first, as lru does."""

    class pool_type(PagedPool):
        def __init__(self, blocks: int, policy: str) -> None:
            super().__init__(blocks, "lru" if policy == "fifo" else policy)


@fault("paged-lru-as-fifo", law="eviction_order", seen=("seed 004",))
class LruAsFifo(WithFaultyPool):
    """The lru policy evicts the block that was allocated first and ignores later uses."""

    class pool_type(PagedPool):
        def __init__(self, blocks: int, policy: str) -> None:
            super().__init__(blocks, "fifo" if policy == "lru" else policy)


@fault("paged-frequency-ties", law="eviction_order", seen=("seed 004",))
class FrequencyTies(WithFaultyPool):
    """The frequency policy breaks ties by block number instead of age."""

    class pool_type(PagedPool):
        def _rank(self, number: int) -> tuple[int, ...]:
            rank = super()._rank(number)
            return (rank[0], number) if self._policy == "frequency" else rank


@fault("paged-frequency-tokens", law="eviction_order", seen=("seed 004",))
class FrequencyCountsTokens(PagedCache):
    """Each token appended to a block counts as a use of that block."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        growth = super().append(sequence, tokens)
        self._pool.blocks[self._tables[sequence][-1]].uses += tokens
        return growth


@fault("paged-hit-no-use", law="eviction_order", seen=("seed 004",))
class HitIsNoUse(WithFaultyPool):
    """A hit does not count as a use of its blocks."""

    class pool_type(PagedPool):
        def hold(self, blocks: Sequence[int]) -> None:
            super().hold(blocks)
            for block in blocks:
                self.blocks[block].uses -= 1


@fault("paged-head-first", law="eviction_order", seen=("Megatron-LM#5822",))
class HeadFirst(WithFaultyPool):
    """Releasing a sequence puts the head of its prefix first in the eviction order."""

    class pool_type(PagedPool):
        def _rank(self, number: int) -> tuple[int, ...]:
            *rank, deepest_first = super()._rank(number)
            return (*rank, -deepest_first)


@fault("paged-evicts-more", law="eviction_order", seen=("sglang#4987",))
class EvictsOneMore(WithFaultyPool):
    """An allocation that evicts takes one block more than it needs."""

    class pool_type(PagedPool):
        def take(self, depth: int, n: int) -> list[int]:
            evicted = self.counts["evictions"]
            taken = super().take(depth, n)
            if self.counts["evictions"] > evicted and self.idle():
                self.evict(self.idle()[0])
            return taken


@fault("paged-stale-heap", law="eviction_order", seen=("vllm#16825",))
class StaleHeap(WithFaultyPool):
    """A block that is hit stays in the eviction heap, so it later counts with its old use."""

    class pool_type(PagedPool):
        def release(self, blocks: Sequence[int]) -> None:
            before = {block: self.blocks[block].released for block in blocks}
            super().release(blocks)
            for block in blocks:
                self.blocks[block].released = before[block] or self.blocks[block].released


@fault("paged-keys-grow", law="eviction_order", seen=("sglang-omni#1724",))
class KeysOnlyGrow(WithFaultyPool):
    """A block whose use count starts again keeps its old, higher count in the eviction heap."""

    class pool_type(PagedPool):
        def take(self, depth: int, n: int) -> list[int]:
            uses = [block.uses for block in self.blocks]
            taken = super().take(depth, n)
            for block in taken:
                self.blocks[block].uses = max(1, uses[block])
            return taken


@fault("paged-evicts-source", law="eviction_order", seen=("TensorRT-LLM#12892",))
class EvictsCopySource(PagedCache):
    """Copy-on-write releases the source before it takes the target, which may evict the source."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        try:
            return super().append(sequence, tokens)
        except OutOfSlots:
            length, table = self._find("append", sequence)
            alone = table and self._pool.blocks[table[-1]].holders == 1 and length % self._size
            if not alone or length % self._size + tokens > self._size or self._pool.free or self._pool.idle():
                raise
            source = table[-1]
            self._pool.release([source])
            self._tables[sequence] = table[:-1] + self._pool.take(len(table) - 1, 1)
            self._lengths[sequence] = length + tokens
            return Growth([], [(source, source)])


@fault("paged-evicts-for-ever", law="termination", seen=("vllm#11565",))
class TakesUntilFull(WithFaultyPool):
    """An allocation loops forever when nothing is left to evict."""

    class pool_type(PagedPool):
        def require(self, operation: str, n: int, hit: Sequence[int] = ()) -> None:
            while not self.free and n:
                for block in self.idle()[:1]:
                    self.evict(block)
            super().require(operation, n, hit)
