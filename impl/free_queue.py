"""A queue of free blocks that takes and gives whole batches as slices, and lets any block go from the middle in O(1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kvlockstep.reference.contracts import OutOfSlots

HOLE = -1
SPARE_HOLES = 8


class FreeQueue:
    """First in, first out, over block numbers that are not negative. The caller queues no block twice.

    Two stacks: the head of the queue is the end of `_out`, its tail the end of `_in`; an empty `_out` is replaced by
    `_in` turned over. Blocks are numbered as they arrive, and `_place` tells the arrival number of a block, hence where it lies:
    from `_first` on in `_in`, before in `_out`. Arrivals are noted there only when a block has to be found, so a block
    that leaves by the head costs a few ns. Removal leaves a hole; when holes outnumber blocks they are squeezed out.

    Costs are amortised O(1): every arrival is noted, turned over and squeezed at most once per arrival or removal. A
    single removal may take as long as all that arrived since the last one, some 50 ns each.
    """

    __slots__ = ("_first", "_holes", "_in", "_noted", "_out", "_place")

    def __init__(self, blocks: Iterable[int] = ()) -> None:
        self._in = list(blocks)
        self._out: list[int] = []
        self._first = 0
        self._noted = 0
        self._place: dict[int, int] = {}
        self._holes = 0

    def __len__(self) -> int:
        return len(self._out) + len(self._in) - self._holes

    def __iter__(self) -> Iterator[int]:
        """The blocks, head first."""
        yield from (block for block in reversed(self._out) if block != HOLE)
        yield from (block for block in self._in if block != HOLE)

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
        self._note_arrivals()
        place, first, entering, leaving = self._place, self._first, self._in, self._out
        for block in blocks:
            at = place[block] - first
            if at >= 0:
                entering[at] = HOLE
            else:
                leaving[~at] = HOLE
        self._holes += len(blocks)
        if self._holes > len(self) + SPARE_HOLES:
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
        first, out, entering = self._first, self._out, self._in
        if self._noted < first:
            start = max(self._noted, first - len(out))
            if start < first:
                self._place.update(zip(out[first - 1 - start :: -1], range(start, first), strict=True))
            self._noted = first
        end = first + len(entering)
        if self._noted < end:
            self._place.update(zip(entering[self._noted - first :], range(self._noted, end), strict=True))
            self._noted = end

    def _squeeze(self) -> None:
        self._out = list(self)[::-1]
        self._in = []
        self._first = len(self._out)
        self._noted = 0
        self._holes = 0
