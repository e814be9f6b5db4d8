"""A queue of free blocks: whole batches come and go as slices, and any block leaves the middle in O(1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kvlockstep.reference.errors import OutOfSlots

HOLE = -1
SPARE_HOLES = 8


class FreeQueue:
    """First in, first out, over the block numbers below `capacity`. The caller queues no block twice.

    Two stacks: the head of the queue is the end of `_out`, its tail the end of `_in`; when `_out` is empty, `_in` is
    turned over and takes its place. Arrivals are counted, and the number of a block's arrival tells where it lies: from
    `_first` on in `_in`, before that in `_out`. It is noted in `_place` only when some block has to be found, so that a
    batch which leaves by the head has cost a few ns per block. Removal leaves a hole; holes are squeezed out in time.

    Costs are amortised O(1), for every arrival is noted and turned over once, and squeezing pays for two holes per
    block. A single removal may take as long as noting all that arrived since the last one, some 30 ns each.
    """

    __slots__ = ("_first", "_holes", "_in", "_noted", "_out", "_place")

    def __init__(self, capacity: int, blocks: Iterable[int] = ()) -> None:
        self._in = list(blocks)
        self._out: list[int] = []
        self._first = 0
        self._noted = 0
        self._place = [0] * capacity
        self._holes = 0

    def __len__(self) -> int:
        return len(self._out) + len(self._in) - self._holes

    def __iter__(self) -> Iterator[int]:
        """The blocks, head first."""
        return (block for stack in (reversed(self._out), self._in) for block in stack if block != HOLE)

    def append(self, blocks: Iterable[int]) -> None:
        """Queues blocks at the tail, in their order."""
        self._in += blocks

    def pop(self, n: int) -> list[int]:
        """Takes `n` blocks off the head, in order. Raises OutOfSlots if there are fewer."""
        out = self._out
        if n > len(out) or self._holes:
            return self._pop_piecewise(n)
        taken = out[: -n - 1 : -1]
        del out[len(out) - n :]
        return taken

    def remove(self, blocks: Sequence[int]) -> None:
        """Takes blocks out from wherever they are. The caller knows that they are queued."""
        if not blocks:
            return
        self._note_arrivals()
        place, first, entering, leaving = self._place, self._first, self._in, self._out
        for block in blocks:
            at = place[block] - first
            if at >= 0:
                entering[at] = HOLE
            else:
                leaving[~at] = HOLE
        self._holes += len(blocks)
        if self._holes > 2 * len(self) + SPARE_HOLES:
            self._squeeze()

    def _pop_piecewise(self, n: int) -> list[int]:
        if n > len(self):
            raise OutOfSlots(f"{n} blocks asked for, {len(self)} are free")
        taken: list[int] = []
        while missing := n - len(taken):
            if not self._out:
                self._turn_over()
            out = self._out
            part = out[: -missing - 1 : -1]
            del out[-missing:]
            if self._holes:
                blocks = [block for block in part if block != HOLE]
                self._holes -= len(part) - len(blocks)
                part = blocks
            taken += part
        return taken

    def _turn_over(self) -> None:
        self._first += len(self._in)
        self._in.reverse()
        self._out, self._in = self._in, []

    def _note_arrivals(self) -> None:
        """Notes where those lie that arrived since the last time and are still here. There is no hole among them."""
        place, first, noted, out = self._place, self._first, self._noted, self._out
        if noted < first:
            start = max(noted, first - len(out))
            for at, block in enumerate(reversed(out[: first - start]), start):
                place[block] = at
            noted = first
        for at, block in enumerate(self._in[noted - first :], noted):
            place[block] = at
        self._noted = first + len(self._in)

    def _squeeze(self) -> None:
        blocks = [block for block in self._in if block != HOLE]
        blocks.reverse()
        blocks += [block for block in self._out if block != HOLE]
        self._out, self._in = blocks, []
        self._first, self._noted, self._holes = len(blocks), 0, 0
