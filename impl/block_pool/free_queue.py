"""A queue of free blocks: whole batches come and go as slices, and any block leaves the middle in O(1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from kvlockstep.reference.errors import OutOfSlots

PIECE = 4096


class Entry:
    """A block, its neighbours if it is linked, and how many of its arrivals are gone. The end of the list is no block.

    One object is one or two cache lines, where lists by block number are a line for every field.
    """

    __slots__ = ("block", "following", "gone", "preceding")

    def __init__(self, block: int) -> None:
        self.block = block
        self.following: Entry | None = None
        self.preceding: Entry = self
        self.gone = 0


class FreeQueue:
    """First in, first out, over the block numbers below `capacity`. The caller queues no block twice.

    The head of the queue is a doubly linked list of entries, closed by `_end`. Behind it lie arrivals: `_out` (its end
    first), the lists in `_pieces`, then `_in`; a piece is turned over when it becomes `_out`. A block leaves the list
    by its links. Nobody knows where among the arrivals a block lies, so there it leaves its number behind: the first
    `gone` arrivals of an entry are gone. Every block that is removed pays for the first two arrivals, and every block
    popped from the list for one as long as any is gone: what is gone is dropped, what is not joins the list.

    So arrivals that are gone are never more than blocks in the list: an operation that adds one to these, or takes one
    from those, evens it out at once. Hence nothing is gone when the list is empty, and a batch is popped off the
    arrivals as it is; arrivals are never more than `capacity`; and a call does O(1) for each of its blocks, beside
    turning over one piece. From the first removal on, arrivals are linked when they come, while their entries are still
    near the core, and as many that came before; a queue without removals stays one of slices.
    """

    __slots__ = ("_end", "_entries", "_gone", "_in", "_linked", "_out", "_pieced", "_pieces", "_removals")

    def __init__(self, capacity: int, blocks: Iterable[int] = ()) -> None:
        self._in: list[int] = []
        self._out: list[int] = []
        self._pieces: deque[list[int]] = deque()
        self._pieced = 0
        self._entries = [Entry(block) for block in range(capacity)]
        self._end = Entry(capacity)
        self._end.following = self._end
        self._linked = 0
        self._gone = 0
        self._removals = False
        self.append(list(blocks))

    def __len__(self) -> int:
        return self._linked + self._arrivals() - self._gone

    def __iter__(self) -> Iterator[int]:
        """The blocks, head first."""
        entry = self._end.following
        while entry is not None and entry is not self._end:
            yield entry.block
            entry = entry.following
        seen: dict[int, int] = {}
        for block in chain(reversed(self._out), *self._pieces, self._in):
            seen[block] = seen.get(block, 0) + 1
            if seen[block] > self._entries[block].gone:
                yield block

    def append(self, blocks: Sequence[int]) -> None:
        """Queues blocks at the tail, in their order."""
        if self._removals:
            if not self._arrivals():
                self._link(blocks)
                return
            self._link(self._arrived(len(blocks)))
        last = self._in
        last += blocks
        if len(last) >= PIECE:
            self._cut(last)

    def pop(self, n: int) -> list[int]:
        """Takes `n` blocks off the head, in order. Raises OutOfSlots if there are fewer."""
        if n == 1 and self._linked:
            # An engine evicts block by block: half the time of `_unlink`.
            end = self._end
            entry = end.following
            assert entry is not None
            following, entry.following = entry.following, None
            assert following is not None
            end.following = following
            following.preceding = end
            self._linked -= 1
            if self._gone:
                self._link(self._arrived(1))
            return [entry.block]
        out = self._out
        if n > len(out) or self._linked:
            return self._unlink(n) if n <= self._linked else self._pop_piecewise(n)
        if n == 1:
            return [out.pop()]  # a fifth of the time of the slice
        taken = out[: -n - 1 : -1]
        del out[len(out) - n :]
        return taken

    def remove(self, blocks: Sequence[int]) -> None:
        """Takes blocks out from wherever they are. The caller knows that they are queued."""
        gone = 0
        # All entries first: one by one, each would wait for memory, which takes longer than all the rest.
        for entry in list(map(self._entries.__getitem__, blocks)):
            following = entry.following
            if following is None:
                entry.gone += 1
                gone += 1
            else:
                preceding = entry.preceding
                preceding.following = following
                following.preceding = preceding
                entry.following = None
        self._linked -= len(blocks) - gone
        self._gone += gone
        self._removals = True
        if self._arrivals():
            self._link(self._arrived(2 * len(blocks)))

    def _pop_piecewise(self, n: int) -> list[int]:
        if n > len(self):
            raise OutOfSlots(f"{n} blocks asked for, {len(self)} are free")
        taken: list[int] = []
        while self._linked and len(taken) < n:
            taken += self._unlink(min(n - len(taken), self._linked))
        return taken + self._arrived(n - len(taken))  # none of these is gone, for the list is empty

    def _unlink(self, n: int) -> list[int]:
        """Takes the first `n` blocks off the list, which has as many."""
        end = self._end
        entry = end.following
        taken: list[int] = []
        for _ in range(n):
            assert entry is not None
            taken.append(entry.block)
            following = entry.following
            entry.following = None
            entry = following
        assert entry is not None
        end.following = entry
        entry.preceding = end
        self._linked -= n
        if self._gone:
            self._link(self._arrived(n))
        return taken

    def _link(self, arrived: Sequence[int]) -> None:
        """Those of the next arrivals that are not gone join the list."""
        end = self._end
        preceding = end.preceding
        dropped = 0
        for entry in list(map(self._entries.__getitem__, arrived)):
            if entry.gone:
                entry.gone -= 1
                dropped += 1
            else:
                preceding.following = entry
                entry.preceding = preceding
                preceding = entry
        preceding.following = end
        end.preceding = preceding
        self._linked += len(arrived) - dropped
        self._gone -= dropped

    def _arrivals(self) -> int:
        return len(self._out) + self._pieced + len(self._in)

    def _arrived(self, n: int) -> list[int]:
        """Takes the first `n` arrivals, gone ones among them, or all if they are fewer."""
        out = self._out
        if n <= len(out):
            taken = out[: -n - 1 : -1]
            del out[len(out) - n :]
            return taken
        taken = []
        while len(taken) < n and (self._out or self._turn_over()):
            out, missing = self._out, n - len(taken)
            taken += out[: -missing - 1 : -1]
            del out[-missing:]
        return taken

    def _turn_over(self) -> bool:
        """Makes the first piece `_out`; false if nothing is left."""
        if self._pieces:
            self._out = self._pieces.popleft()
            self._pieced -= len(self._out)
        else:
            self._out, self._in = self._in, []
        self._out.reverse()
        return bool(self._out)

    def _cut(self, blocks: list[int]) -> None:
        """Makes pieces of what arrived last."""
        self._in = []
        self._pieced += len(blocks)
        if len(blocks) < 2 * PIECE:
            self._pieces.append(blocks)
        else:
            self._pieces += (blocks[at : at + PIECE] for at in range(0, len(blocks), PIECE))
