"""Faults of block_stack."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.block_stack import BlockStack
from kvlockstep.reference.errors import OutOfSlots


@fault("stack-negative-acquire", law="accounting", seen=("seed 003",))
class NegativeAcquire(BlockStack):
    """Acquiring a negative number of blocks makes held blocks free."""

    def acquire(self, n: int) -> list[int]:
        if n >= 0:
            return super().acquire(n)
        self._between_captures("acquire")
        self._stack += range(min(-n, self._blocks - len(self._stack)))
        return []


@fault("stack-double-release", law="no_double_free", seen=("seed 003",))
class DoubleRelease(BlockStack):
    """release checks nothing, so a block that is released twice is handed out twice."""

    def release(self, blocks: Sequence[int]) -> None:
        self._between_captures("release")
        self._stack.extend(blocks)


@fault("stack-releases-part", law="graph_contract", seen=("mutant",))
class ReleasesPart(BlockStack):
    """A refused release has already pushed the blocks that come before the bad one."""

    def release(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            super().release([block])


@fault("stack-acquires-part", law="atomicity", seen=("Megatron-LM#6091",))
class AcquiresPart(BlockStack):
    """A refused acquire has already emptied the stack."""

    def acquire(self, n: int) -> list[int]:
        try:
            return super().acquire(n)
        except OutOfSlots:
            self._stack.clear()
            raise


@fault("stack-repeat-in-release", law="no_double_free", seen=("vllm#42571",))
class RepeatInOneRelease(BlockStack):
    """release accepts a block that is named twice in one call."""

    def release(self, blocks: Sequence[int]) -> None:
        super().release(list(dict.fromkeys(blocks)))


@fault("stack-acquire-in-capture", law="graph_contract", seen=("seed 003",))
class AcquireInCapture(BlockStack):
    """acquire moves the top of the stack during a graph capture instead of refusing."""

    def acquire(self, n: int) -> list[int]:
        capturing, self._capturing = self._capturing, False
        try:
            return super().acquire(n)
        finally:
            self._capturing = capturing


@fault("stack-reversed", law="structure", seen=("mutant",))
class ReversedOrder(BlockStack):
    """acquire returns the blocks top first instead of in stack order."""

    def acquire(self, n: int) -> list[int]:
        return super().acquire(n)[::-1]


@fault("stack-off-by-one", law="admission_honesty", seen=("llama.cpp#10873",))
class OffByOne(BlockStack):
    """acquire never hands out the last free block."""

    def acquire(self, n: int) -> list[int]:
        if n and n == len(self._stack):
            raise OutOfSlots("full")
        return super().acquire(n)


@fault("stack-shares-top", law="conservation", seen=("vllm#42571",))
class SharesTop(BlockStack):
    """acquire also hands out the block below the new top, which stays free."""

    def acquire(self, n: int) -> list[int]:
        taken = super().acquire(n)
        return [self._stack[-1], *taken[1:]] if n > 1 and self._stack else taken


@fault("stack-release-in-capture", law="graph_contract", seen=("seed 003",))
class ReleaseInCapture(BlockStack):
    """release accepts blocks during a graph capture instead of refusing."""

    def release(self, blocks: Sequence[int]) -> None:
        capturing, self._capturing = self._capturing, False
        try:
            super().release(blocks)
        finally:
            self._capturing = capturing


@fault("stack-overflow", law="error_contract", seen=("seed 003",))
class ReleaseOverflows(BlockStack):
    """Releasing more blocks than the stack holds raises an error of the tensor assignment."""

    def release(self, blocks: Sequence[int]) -> None:
        if not self._capturing and len(self._stack) + len(blocks) > self._blocks:
            raise RuntimeError("the shapes do not match")
        super().release(blocks)


@fault("stack-above-top", law="no_aliasing", seen=("mutant",))
class ReadsAboveTop(BlockStack):
    """acquire reads ids above the top of the stack and returns blocks handed out before."""

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self._above: list[int] = []

    def acquire(self, n: int) -> list[int]:
        taken = super().acquire(n)
        read = self._above[:n]
        self._above = taken + self._above
        return read if len(read) == n else taken

    def release(self, blocks: Sequence[int]) -> None:
        super().release(blocks)
        self._above = self._above[len(blocks) :]
