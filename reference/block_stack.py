"""block_stack: a free list kept as a stack, for allocation between graph captures. Source: seed 003."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kvlockstep.reference.errors import CaptureActive, InvalidArgument, NotHeld, OutOfSlots, UnknownSlot


@runtime_checkable
class BlockStackTarget(Protocol):
    """Factory `make(blocks)`. Source: seed 003, BlockAllocator. Block ids may come as a list or a tensor."""

    @property
    def num_free(self) -> int: ...
    def acquire(self, n: int) -> Sequence[int]: ...
    def release(self, blocks: Sequence[int]) -> None: ...
    def begin_capture(self) -> None: ...
    def end_capture(self) -> None: ...
    def free_blocks(self) -> Sequence[int]: ...


class BlockStack:
    """`blocks` numbered blocks; the free ones form a stack, with the highest number on top at first.

    Raises InvalidArgument if `blocks` is negative.
    """

    def __init__(self, blocks: int) -> None:
        if blocks < 0:
            raise InvalidArgument(f"blocks={blocks}: a stack cannot have a negative size")
        self._blocks = blocks
        self._stack = list(range(blocks))
        self._capturing = False

    @property
    def num_free(self) -> int:
        """Number of free blocks."""
        return len(self._stack)

    def acquire(self, n: int) -> list[int]:
        """Takes the `n` topmost blocks, in stack order (the former top comes last).

        Raises CaptureActive during a capture, InvalidArgument if `n` is negative, OutOfSlots if fewer are free.
        """
        self._between_captures("acquire")
        if n < 0:
            raise InvalidArgument(f"acquire: n={n} is negative")
        if n > len(self._stack):
            raise OutOfSlots(f"acquire: n={n}, but only {len(self._stack)} of {self._blocks} blocks are free")
        start = len(self._stack) - n
        taken = self._stack[start:]
        del self._stack[start:]
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Pushes held blocks back in the order given, all or none.

        Raises CaptureActive during a capture, UnknownSlot for a foreign block, NotHeld for a free or repeated one.
        """
        self._between_captures("release")
        returned: set[int] = set()
        for block in blocks:
            if not 0 <= block < self._blocks:
                raise UnknownSlot(f"release: block {block} is not one of 0..{self._blocks - 1}")
            if block in self._stack or block in returned:
                raise NotHeld(f"release: block {block} is free already or given twice")
            returned.add(block)
        self._stack.extend(blocks)

    def begin_capture(self) -> None:
        """A graph capture starts. Raises CaptureActive if one is active already."""
        self._between_captures("begin_capture")
        self._capturing = True

    def end_capture(self) -> None:
        """The graph capture is over. Raises InvalidArgument if none is active."""
        if not self._capturing:
            raise InvalidArgument("end_capture: no capture is active")
        self._capturing = False

    def free_blocks(self) -> list[int]:
        """The free blocks, bottom of the stack first; allowed during a capture."""
        return list(self._stack)

    def _between_captures(self, operation: str) -> None:
        if self._capturing:
            raise CaptureActive(f"{operation}: a graph capture is active; call it between captures")
