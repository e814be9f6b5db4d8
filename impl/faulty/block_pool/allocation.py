"""Faults of block_pool: taking blocks from the free queue, and counting them."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.block_pool import BlockPool
from kvlockstep.reference.block_pool.contract import HashFunction
from kvlockstep.reference.errors import OutOfSlots


@fault("bp-ghost-key", law="content_equality", seen=("seed 002", "nano-vllm#163"))
class GhostKey(BlockPool):
    """A block that is handed out again can still be found under its old key."""

    def _forget(self, block: int) -> None:
        pass


@fault("bp-count-drifts", law="accounting", seen=("seed 002",))
class CountFollowsCalls(BlockPool):
    """The free count goes down with every removal, even of a block that is not queued."""

    def __init__(self, blocks: int, block_size: int, hash_function: HashFunction | None = None) -> None:
        self._removed_in_vain = 0
        super().__init__(blocks, block_size, hash_function)

    @property
    def num_free(self) -> int:
        return len(self._queue) - self._removed_in_vain

    def touch(self, blocks: Sequence[int]) -> None:
        held = sum(0 <= block < self._blocks and self._refs[block] > 0 for block in blocks)
        super().touch(blocks)
        self._removed_in_vain += held


@fault("bp-evictable-held", law="accounting", seen=("vllm#11565",))
class CountsHeldAsEvictable(BlockPool):
    """The evictable count includes cached blocks that are held."""

    @property
    def num_evictable(self) -> int:
        return len(self._cached)


@fault("bp-empty-crash", law="error_contract", seen=("seed 002",))
class EmptyPoolCrashes(BlockPool):
    """A pool without blocks raises IndexError."""

    def __init__(self, blocks: int, block_size: int, hash_function: HashFunction | None = None) -> None:
        super().__init__(blocks, block_size, hash_function)
        self._head, self._tail = self._queue[0], self._queue[-1]


@fault("bp-from-tail", law="eviction_order", seen=("mutant",))
class TakesFromTail(BlockPool):
    """Allocation takes the block that was freed last."""

    def allocate(self, n: int) -> list[int]:
        self._queue.reverse()
        try:
            return super().allocate(n)
        finally:
            self._queue.reverse()


@fault("bp-refused-takes", law="atomicity", seen=("Megatron-LM#6091",))
class RefusedAllocationKeeps(BlockPool):
    """A refused allocation keeps the blocks taken before it failed."""

    def allocate(self, n: int) -> list[int]:
        if n > len(self._queue):
            super().allocate(len(self._queue))
        return super().allocate(n)


@fault("bp-keeps-one", law="admission_honesty", seen=("llama.cpp#10873",))
class KeepsOneBack(BlockPool):
    """The last free block is never handed out."""

    def allocate(self, n: int) -> list[int]:
        if n == len(self._queue) > 1:
            raise OutOfSlots("one block is kept back")
        return super().allocate(n)


@fault("bp-stutters", law="no_aliasing", seen=("vllm#42571",))
class HandsOutHeldTwin(BlockPool):
    """An allocation of several blocks returns the first one again as the last."""

    def allocate(self, n: int) -> list[int]:
        taken = super().allocate(n)
        if n > 2:
            self._queue.insert(0, taken[-1])
            self._refs[taken[-1]] = 0
            taken[-1] = taken[0]
        return taken


@fault("bp-empty-error", law="error_contract", seen=("seed 002",))
class EmptyIsAnotherError(BlockPool):
    """Taking a block from an empty queue raises the queue's own error."""

    def allocate(self, n: int) -> list[int]:
        if n > 0 and not self._queue:
            raise ValueError("no free blocks")
        return super().allocate(n)
