"""Faults of block_stack."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.block_stack import BlockStack
from kvlockstep.reference.errors import OutOfSlots


class NegativeAcquire(BlockStack):
    """A negative count moves the top up: blocks that are held become free."""

    def acquire(self, n: int) -> list[int]:
        if n >= 0:
            return super().acquire(n)
        self._between_captures("acquire")
        self._stack += range(min(-n, self._blocks - len(self._stack)))
        return []


class DoubleRelease(BlockStack):
    """release looks at nothing."""

    def release(self, blocks: Sequence[int]) -> None:
        self._between_captures("release")
        self._stack.extend(blocks)


class ReleasesPart(BlockStack):
    """A refused release has pushed the blocks before the bad one."""

    def release(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            super().release([block])


class AcquiresPart(BlockStack):
    """A refused acquire has emptied the stack."""

    def acquire(self, n: int) -> list[int]:
        try:
            return super().acquire(n)
        except OutOfSlots:
            self._stack.clear()
            raise


class RepeatInOneRelease(BlockStack):
    """The same block twice in one call is not noticed."""

    def release(self, blocks: Sequence[int]) -> None:
        super().release(list(dict.fromkeys(blocks)))


class AcquireInCapture(BlockStack):
    """A capture does not keep the host from moving the top."""

    def acquire(self, n: int) -> list[int]:
        capturing, self._capturing = self._capturing, False
        try:
            return super().acquire(n)
        finally:
            self._capturing = capturing


class ReversedOrder(BlockStack):
    """Hands blocks out top first."""

    def acquire(self, n: int) -> list[int]:
        return super().acquire(n)[::-1]


class OffByOne(BlockStack):
    """The last free block is never handed out."""

    def acquire(self, n: int) -> list[int]:
        if n and n == len(self._stack):
            raise OutOfSlots("full")
        return super().acquire(n)


class SharesTop(BlockStack):
    """The block below the taken ones is handed out with them and stays free."""

    def acquire(self, n: int) -> list[int]:
        taken = super().acquire(n)
        return [self._stack[-1], *taken[1:]] if n > 1 and self._stack else taken


class ReleaseInCapture(BlockStack):
    """A capture does not keep the host from giving blocks back."""

    def release(self, blocks: Sequence[int]) -> None:
        capturing, self._capturing = self._capturing, False
        try:
            super().release(blocks)
        finally:
            self._capturing = capturing


class ReleaseOverflows(BlockStack):
    """What does not fit behind the top any more fails in the assignment."""

    def release(self, blocks: Sequence[int]) -> None:
        if not self._capturing and len(self._stack) + len(blocks) > self._blocks:
            raise RuntimeError("the shapes do not match")
        super().release(blocks)


class ReadsAboveTop(BlockStack):
    """The ids are read from the top on, not up to it: those that were handed out before."""

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


FAULTS = faults_of(
    "block_stack",
    (
        "stack-negative-acquire",
        NegativeAcquire,
        "a negative count raises the free count",
        ("seed 003",),
        "accounting",
    ),
    (
        "stack-double-release",
        DoubleRelease,
        "a block released twice is handed out twice",
        ("seed 003",),
        "no_double_free",
    ),
    ("stack-releases-part", ReleasesPart, "a refused release is half done", ("mutant",), "graph_contract"),
    ("stack-acquires-part", AcquiresPart, "a refused acquire is half done", ("Megatron-LM#6091",), "atomicity"),
    ("stack-repeat-in-release", RepeatInOneRelease, "free([b, b]) is accepted", ("vllm#42571",), "no_double_free"),
    ("stack-acquire-in-capture", AcquireInCapture, "allocation inside a capture", ("seed 003",), "graph_contract"),
    ("stack-reversed", ReversedOrder, "another order than the contract's", ("mutant",), "structure"),
    ("stack-off-by-one", OffByOne, "the last block is refused", ("llama.cpp#10873",), "admission_honesty"),
    ("stack-shares-top", SharesTop, "a free block is handed out", ("vllm#42571",), "conservation"),
    ("stack-release-in-capture", ReleaseInCapture, "a release inside a capture", ("seed 003",), "graph_contract"),
    ("stack-above-top", ReadsAboveTop, "ids from above the top", ("mutant",), "no_aliasing"),
    ("stack-overflow", ReleaseOverflows, "more blocks come back than there are", ("seed 003",), "error_contract"),
)
