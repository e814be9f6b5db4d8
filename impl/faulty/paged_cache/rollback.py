"""Faults of paged_cache: what a failed call leaves behind."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.errors import OutOfSlots
from kvlockstep.reference.paged_cache import PagedCache
from kvlockstep.reference.paged_cache.contract import Allocation, Growth


@fault("paged-rollback-others", law="eviction_safety", seen=("seed 004",))
class RollbackDropsOthers(PagedCache):
    """Rolling back a failed append frees blocks that the sequence had before."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        try:
            return super().append(sequence, tokens)
        except OutOfSlots:
            length, table = self._find("append", sequence)
            kept = max(0, 2 * len(table) - self._blocks_for(length + tokens))
            self._pool.release(table[kept:])
            del table[kept:]
            raise


@fault("paged-rollback-twice", law="conservation", seen=("seed 004",))
class RollbackFreesTwice(PagedCache):
    """Rolling back a failed allocation queues blocks that are still in the free queue."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        try:
            return super().allocate(sequence, tokens, keys)
        except OutOfSlots:
            self._pool.free += self._pool.free[:1]
            raise


@fault("paged-failure-counts", law="atomicity", seen=("Megatron-LM#6416",))
class FailureCounts(PagedCache):
    """A refused allocation has already counted its hits."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        try:
            return super().allocate(sequence, tokens, keys)
        except OutOfSlots:
            self._pool.counts["hits"] += len(self.lookup(keys))
            raise


@fault("paged-append-half", law="eviction_safety", seen=("seed 004",))
class AppendHalfDone(PagedCache):
    """A refused append has already done its copy-on-write."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        try:
            return super().append(sequence, tokens)
        except OutOfSlots:
            length, table = self._find("append", sequence)
            if self._pool.free and length % self._size and self._pool.frozen(table[-1]):
                last = table.pop()
                table += self._pool.take(len(table), 1)
                self._pool.release([last])
            raise


@fault("paged-rollback-counts", law="atomicity", seen=("seed 004",))
class RollbackCounts(PagedCache):
    """Blocks that a failed allocation took and gave back count as allocated."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        try:
            return super().allocate(sequence, tokens, keys)
        except OutOfSlots:
            self._pool.counts["allocations"] += len(self._pool.free)
            raise


@fault("paged-rollback-reorders", law="atomicity", seen=("Megatron-LM#6091",))
class RollbackReorders(PagedCache):
    """Rolling back a failed allocation changes the order of the free queue."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        try:
            return super().allocate(sequence, tokens, keys)
        except OutOfSlots:
            self._pool.free.reverse()
            raise
