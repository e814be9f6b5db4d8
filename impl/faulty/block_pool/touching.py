"""Faults of block_pool: taking a reference on a hit."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.block_pool import BlockPool
from kvlockstep.reference.block_pool.keys import BlockKey


@fault("bp-touch-queued", law="conservation", seen=("vllm#10507",))
class TouchLeavesQueued(BlockPool):
    """Touching a free block counts a holder but leaves the block in the free queue."""

    def touch(self, blocks: Sequence[int]) -> None:
        queue = self._queue.copy()
        super().touch(blocks)
        self._queue = queue


@fault("bp-touch-uncounted", law="refcount_exact", seen=("mutant",))
class TouchCountsFirstHolder(BlockPool):
    """Touching a block that is already held does not count the new holder."""

    def touch(self, blocks: Sequence[int]) -> None:
        super().touch(blocks)
        for block in blocks:
            self._refs[block] = max(1, self._refs[block] - 1)


@fault("bp-stale-touch", law="agreement", seen=("vllm#10507",))
class TouchesStaleHit(BlockPool):
    """A hit that was evicted before it was touched is held all the same."""

    def _check_worth_holding(self, block: int) -> None:
        pass


@fault("bp-touch-uncaches", law="eviction_safety", seen=("mutant",))
class TouchUncaches(BlockPool):
    """A block that gets a holder leaves the index until it is free again."""

    def _clear(self) -> None:
        super()._clear()
        self._aside: dict[int, BlockKey] = {}

    def touch(self, blocks: Sequence[int]) -> None:
        super().touch(blocks)
        self._aside.update({block: self._cached.pop(block) for block in blocks if block in self._cached})

    def free(self, blocks: Sequence[int]) -> None:
        self._cached.update({block: self._aside.pop(block) for block in blocks if block in self._aside})
        super().free(blocks)
