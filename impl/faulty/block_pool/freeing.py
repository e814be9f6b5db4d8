"""Faults of block_pool: freeing blocks, and the free queue."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.block_pool import BlockPool
from kvlockstep.reference.errors import ContractError


@fault("bp-free-twice", law="no_double_free", seen=("unified-cache-management#1053",))
class FreedTwiceAtOnce(BlockPool):
    """free([b, b]) by one of two holders also drops the other holder's reference."""

    def free(self, blocks: Sequence[int]) -> None:
        known = all(0 <= block < self._blocks for block in blocks)
        if (
            known
            and len(set(blocks)) < len(blocks)
            and all(blocks.count(block) <= self._refs[block] for block in blocks)
        ):
            for block in blocks:
                super().free([block])
        else:
            super().free(blocks)


@fault("bp-decrement-filter", law="no_double_free", seen=("dynamo#13398",))
class DecrementsThenFilters(BlockPool):
    """free lowers all counts first and then queues idle blocks, so [b, b] queues b twice."""

    def free(self, blocks: Sequence[int]) -> None:
        for i, block in enumerate(blocks):
            self._check("free", [block], self._check_held)
            if block in blocks[:i]:
                continue
        for block in blocks:
            self._refs[block] = max(0, self._refs[block] - 1)
        idle = [block for block in reversed(blocks) if not self._refs[block]]
        blank = [block for block in idle if block not in self._cached]
        self._queue = blank + self._queue + [block for block in idle if block in self._cached]


@fault("bp-queue-cut", law="no_double_free", seen=("seed 002",))
class QueuedTwiceCutsQueue(BlockPool):
    """A free block can be freed again, and appending it cuts off the linked queue behind it."""

    def free(self, blocks: Sequence[int]) -> None:
        again = [block for block in blocks if block in self._queue]
        super().free([block for block in blocks if block not in again])
        for block in again:
            self._queue = self._queue[: self._queue.index(block) + 1]


@fault("bp-head-first", law="eviction_order", seen=("sglang#38000", "Megatron-LM#5822"))
class HeadFreedFirst(BlockPool):
    """Freeing a request makes its first block the first to be evicted."""

    def free(self, blocks: Sequence[int]) -> None:
        self._check("free", blocks, self._check_held)
        super().free(blocks[::-1])


@fault("bp-blank-last", law="eviction_order", seen=("seed 002",))
class BlankToTail(BlockPool):
    """Blocks that cache nothing queue behind cached ones, so cached blocks are evicted first."""

    def free(self, blocks: Sequence[int]) -> None:
        queue = self._queue
        super().free(blocks)
        self._queue = queue + [block for block in reversed(blocks) if not self._refs[block]]


@fault("bp-free-forgets", law="eviction_safety", seen=("mutant",))
class FreeForgets(BlockPool):
    """A block that loses its last holder is removed from the cache."""

    def free(self, blocks: Sequence[int]) -> None:
        super().free(blocks)
        for block in blocks:
            if not self._refs[block]:
                self._forget(block)


@fault("bp-refused-free", law="atomicity", seen=("Megatron-LM#6091",))
class RefusedFreeFrees(BlockPool):
    """A refused free has already freed the blocks before the bad one."""

    def free(self, blocks: Sequence[int]) -> None:
        for n in range(len(blocks)):
            try:
                self._check("free", blocks[: n + 1], self._check_held)
            except ContractError:
                super().free(blocks[:n])
                raise
        super().free(blocks)


@fault("bp-cached-leaks", law="conservation", seen=("xllm#829",))
class CachedNeverFree(BlockPool):
    """A cached block that loses its last holder is not queued if other blocks are queued."""

    def free(self, blocks: Sequence[int]) -> None:
        super().free(blocks)
        cached = [block for block in self._queue if block in self._cached]
        if len(cached) > 1 and cached[-1] in blocks:
            self._queue.remove(cached[-1])


@fault("bp-null-freed", law="no_double_free", seen=("vllm#22209",))
class NullIsOrdinary(BlockPool):
    """Freeing the placeholder -1 lowers the count of the last block."""

    def free(self, blocks: Sequence[int]) -> None:
        if -1 in blocks and self._refs:
            self._refs[-1] -= 1
            return
        super().free(blocks)


@fault("bp-free-twice-of-many", law="no_double_free", seen=("dynamo#13398",))
class FreedTwiceOfMany(BlockPool):
    """free([b, b]) is refused only if it frees b; otherwise it takes another's reference."""

    def free(self, blocks: Sequence[int]) -> None:
        for block in [b for i, b in enumerate(blocks) if b in blocks[:i]]:
            if 0 <= block < self._blocks and self._refs[block] > blocks.count(block):
                super().free([block])
                blocks = list(dict.fromkeys(blocks))
        super().free(blocks)
