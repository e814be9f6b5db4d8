"""decode_graphs: a decode step in captured graphs that read the block table as it is now and take blocks themselves.

A graph replays on memory, not on values: the content of the table at the capture does not matter. Source:
seed 003 (allocation between captures, tables read inside), and, beyond it, allocation inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvlockstep.reference.decode_graphs.contract import DONE, FULL, NO_BLOCK, REFUSED, Lane, NotCaptured, StaleGraph
from kvlockstep.reference.errors import CaptureActive, InvalidArgument, NotFree, NotHeld, OutOfSlots

Table = list[list[int]]


class Graph(NamedTuple):
    """A captured step: how many lanes it has, and the memory that it reads and writes."""

    lanes: int
    table: Table
    lengths: list[int]


class DecodeGraphs:
    """`blocks` blocks of `block_size` slots, and a table of up to `width` blocks for each of `rows` sequences.

    Raises InvalidArgument.
    """

    def __init__(self, rows: int, width: int, blocks: int, block_size: int) -> None:
        if min(rows, width, block_size) < 1 or blocks < 0:
            raise InvalidArgument(f"{rows=}, {width=}, {blocks=}, {block_size=}")
        self._size, self._width = block_size, width
        self._table = [[NO_BLOCK] * width for _ in range(rows)]
        self._lengths = [0] * rows
        self._free = list(range(blocks))
        self._memory = [0] * (blocks * block_size)
        self._graphs: dict[int, Graph] = {}
        self._capturing: int | None = None
        self._lanes: list[Lane] = []

    @property
    def num_free(self) -> int:
        """Number of free blocks."""
        return len(self._free)

    def admit(self, row: int, stamps: Sequence[int]) -> None:
        """A sequence of these tokens moves into an empty row, with the topmost free blocks in stack order.

        Raises CaptureActive, InvalidArgument for an unknown row or a length of 0 or more than the table holds, NotFree
        if the row is taken, OutOfSlots.
        """
        self._between_captures("admit")
        self._check_row("admit", row)
        if not 1 <= len(stamps) <= self._width * self._size:
            raise InvalidArgument(f"admit: {len(stamps)} tokens in a table of {self._width} blocks of {self._size}")
        if self._lengths[row]:
            raise NotFree(f"admit: row {row} is taken")
        needed = -(-len(stamps) // self._size)
        if needed > self.num_free:
            raise OutOfSlots(f"admit: {needed} blocks are needed, {self.num_free} are free")
        blocks = self._pop(needed)
        self._table[row][:needed] = blocks
        for i, stamp in enumerate(stamps):
            self._memory[self._slot(blocks[i // self._size], i)] = stamp
        self._lengths[row] = len(stamps)

    def release(self, row: int) -> None:
        """The row's blocks are free again, pushed in table order. Raises CaptureActive, InvalidArgument, NotHeld."""
        self._between_captures("release")
        self._check_row("release", row)
        if not self._lengths[row]:
            raise NotHeld(f"release: row {row} is empty")
        self._free += [block for block in self._table[row] if block != NO_BLOCK]
        self._table[row][:] = [NO_BLOCK] * self._width
        self._lengths[row] = 0

    def widen(self, width: int) -> None:
        """The table moves to new memory with another width; every graph is stale from now on.

        Raises CaptureActive, InvalidArgument if it is below 1 or a row has more blocks.
        """
        self._between_captures("widen")
        used = max(sum(block != NO_BLOCK for block in blocks) for blocks in self._table)
        if width < max(used, 1):
            raise InvalidArgument(f"widen: width={width}, a row has {used} blocks")
        self._table = [(blocks + [NO_BLOCK] * width)[:width] for blocks in self._table]
        self._width = width

    def begin_capture(self, lanes: int) -> None:
        """The step of a batch of `lanes` is captured; nothing runs. Raises CaptureActive, InvalidArgument."""
        self._between_captures("begin_capture")
        if not 1 <= lanes <= len(self._lengths):
            raise InvalidArgument(f"begin_capture: lanes={lanes} is not one of 1..{len(self._lengths)}")
        self._capturing = lanes

    def end_capture(self) -> None:
        """The captured graph takes the place of an older one of its size. Raises InvalidArgument without a capture."""
        if self._capturing is None:
            raise InvalidArgument("end_capture: no capture is active")
        self._graphs[self._capturing] = Graph(self._capturing, self._table, self._lengths)
        self._capturing = None

    def replay(self, lanes: int, rows: Sequence[int], stamps: Sequence[int]) -> None:
        """Runs the graph of `lanes`: in lane i, row rows[i] grows by a token stamps[i]; lanes beyond are padding.

        A row whose last block is full takes a block, in the order of the lanes, as long as there is one. Returns before
        the device is done. Raises CaptureActive, InvalidArgument for more rows than lanes or a row that is repeated or
        empty, NotCaptured, StaleGraph.
        """
        self._between_captures("replay")
        if len(rows) > lanes or len(rows) != len(stamps) or len(set(rows)) < len(rows):
            raise InvalidArgument(f"replay: rows {list(rows)} with {len(stamps)} stamps in {lanes} lanes")
        for row in rows:
            self._check_row("replay", row)
            if not self._lengths[row]:
                raise InvalidArgument(f"replay: row {row} is empty")
        graph = self._graphs.get(lanes)
        if graph is None:
            raise NotCaptured(f"replay: no graph of {lanes} lanes was captured")
        if graph.table is not self._table:
            raise StaleGraph(f"replay: the graph of {lanes} lanes was captured before the table moved")
        self._run(graph, rows, stamps)

    def collect(self) -> list[Lane]:
        """Returns a Lane for each row of the last replay; waits for the device."""
        return list(self._lanes)

    def tables(self) -> Table:
        """The block tables, NO_BLOCK where there is none."""
        return [list(blocks) for blocks in self._table]

    def lengths(self) -> list[int]:
        """Tokens in each row."""
        return list(self._lengths)

    def free_blocks(self) -> list[int]:
        """The free blocks, bottom of the stack first."""
        return list(self._free)

    def memory(self) -> list[int]:
        """The stamp in each slot, 0 before the first."""
        return list(self._memory)

    def _run(self, graph: Graph, rows: Sequence[int], stamps: Sequence[int]) -> None:
        statuses = [self._grow(graph, row, stamp) for row, stamp in zip(rows, stamps, strict=True)]
        self._lanes = [Lane(status, self._context(graph, row)) for status, row in zip(statuses, rows, strict=True)]

    def _grow(self, graph: Graph, row: int, stamp: int) -> int:
        position, blocks = graph.lengths[row], graph.table[row]
        if position == len(blocks) * self._size:
            return FULL
        if position % self._size == 0:
            if not self._free:
                return REFUSED
            blocks[position // self._size] = self._pop(1)[0]
        self._memory[self._slot(blocks[position // self._size], position)] = stamp
        graph.lengths[row] += 1
        return DONE

    def _context(self, graph: Graph, row: int) -> list[int]:
        blocks = graph.table[row]
        return [self._memory[self._slot(blocks[i // self._size], i)] for i in range(graph.lengths[row])]

    def _pop(self, n: int) -> list[int]:
        start = len(self._free) - n
        taken = self._free[start:]
        del self._free[start:]
        return taken

    def _slot(self, block: int, position: int) -> int:
        return block * self._size + position % self._size

    def _check_row(self, operation: str, row: int) -> None:
        if not 0 <= row < len(self._lengths):
            raise InvalidArgument(f"{operation}: row {row} is not one of 0..{len(self._lengths) - 1}")

    def _between_captures(self, operation: str) -> None:
        if self._capturing is not None:
            raise CaptureActive(f"{operation}: a graph capture is active; call it between captures")
