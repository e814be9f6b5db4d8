"""Faults of block_pool: reset."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.block_pool import BlockPool
from kvlockstep.reference.block_pool.contract import InUse


@fault("bp-reset-live", law="conservation", seen=("mutant",))
class ResetWithLive(BlockPool):
    """A reset is accepted while requests hold blocks, and takes their blocks back."""

    def reset(self) -> None:
        self._clear()


@fault("bp-reset-under-live", law="reset_complete", seen=("mutant",))
class ResetUnderLive(BlockPool):
    """A reset is accepted while requests hold blocks: it clears the index and keeps the counts."""

    def reset(self) -> None:
        self._queue.sort()
        self._cached = {}


@fault("bp-reset-keeps", law="content_equality", seen=("mutant",))
class ResetForgetsFreeOnly(BlockPool):
    """A reset rebuilds the free queue but keeps the index."""

    def reset(self) -> None:
        cached = self._cached
        super().reset()
        self._cached = cached


@fault("bp-reset-refused", law="admission_honesty", seen=("imp#1115",))
class ResetRefusedByCached(BlockPool):
    """A reset is refused because cached blocks are taken for held ones."""

    def reset(self) -> None:
        if self._cached:
            raise InUse("blocks are cached")
        super().reset()
