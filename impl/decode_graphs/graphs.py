"""decode_graphs on torch: one decode step as captured graphs, on a GPU or as their stand-in on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from kvlockstep.impl.block_stack import BlockStack
from kvlockstep.impl.decode_graphs.captures import Capture, Work, begin
from kvlockstep.reference.decode_graphs.contract import DONE, FULL, NO_BLOCK, REFUSED, Lane, NotCaptured, StaleGraph
from kvlockstep.reference.errors import CaptureActive, InvalidArgument, NotFree, NotHeld, OutOfSlots


class Memory(NamedTuple):
    """Memory that a graph reads and writes, int64 unless it says otherwise. The last row and slot are for padding.

    `table` [row + 1, width] and `lengths` [row + 1]; `slots` [slot + 1], a stamp each. Inputs of a replay: `rows` and
    `stamps` of its lanes, [lane]. Answers: `statuses` [lane], `reaches` [lane] and `contexts` [lane, token], of which
    the first reaches[lane] count. `wanted` [lane], `taken` [lane, 1] and `served` [lane], int32, are in between.
    """

    table: torch.Tensor
    lengths: torch.Tensor
    slots: torch.Tensor
    rows: torch.Tensor
    stamps: torch.Tensor
    statuses: torch.Tensor
    reaches: torch.Tensor
    contexts: torch.Tensor
    wanted: torch.Tensor
    taken: torch.Tensor
    served: torch.Tensor


class Tokens(NamedTuple):
    """The tokens of a step, int64 [lane]: the row of each lane, the block and the position of its new token.

    `grows` [lane] tells where there is one: not in padded lanes, and not where there is no room.
    """

    rows: torch.Tensor
    blocks: torch.Tensor
    positions: torch.Tensor
    grows: torch.Tensor


# Writes memory.stamps of the lanes that grow, on the device, from inside a graph.
Put = Callable[[Memory, Tokens], None]


class Graph(NamedTuple):
    """A captured graph: the object that replays it, its memory with results of its own, and its write.

    A replay writes to tensors that nothing but the write may hold.
    """

    replay: Work
    memory: Memory
    put: Put


class DecodeGraphs:
    """Meets DecodeGraphsTarget of reference.decode_graphs.contract on `device`.

    The host keeps no lengths or tables: only which rows are live, and the mirror of the stack. Raises InvalidArgument.
    """

    def __init__(self, rows: int, width: int, blocks: int, block_size: int, device: str = "cpu") -> None:
        if min(rows, width, block_size) < 1 or blocks < 0:
            raise InvalidArgument(f"{rows=}, {width=}, {blocks=}, {block_size=}")
        self._rows, self._width, self._size = rows, width, block_size
        self._device = torch.device(device)
        self._stack = BlockStack(blocks, device)
        self._live = [False] * rows
        self._graphs: dict[int, Graph] = {}
        self._known_sizes: set[int] = set()
        self._capture: tuple[int, Capture, Memory, Put] | None = None
        self._last: tuple[int, Memory] | None = None
        zeros = partial(torch.zeros, dtype=torch.int64, device=self._device)
        narrow = partial(torch.zeros, dtype=torch.int32, device=self._device)
        self._memory = Memory(
            table=zeros(rows + 1, width).fill_(NO_BLOCK),
            lengths=zeros(rows + 1),
            slots=zeros(blocks * block_size + 1),
            rows=zeros(rows).fill_(rows),
            stamps=zeros(rows),
            statuses=zeros(0),
            reaches=zeros(0),
            contexts=zeros(0, 0),
            wanted=narrow(rows),
            taken=narrow(rows, 1),
            served=narrow(rows),
        )

    @property
    def num_free(self) -> int:
        """Number of free blocks."""
        return self._stack.num_free

    def admit(self, row: int, stamps: Sequence[int]) -> None:
        """A sequence moves into an empty row."""
        self._between_captures("admit")
        self._check_row("admit", row)
        if not 1 <= len(stamps) <= self._width * self._size:
            raise InvalidArgument(f"admit: {len(stamps)} tokens in a table of {self._width} blocks of {self._size}")
        if self._live[row]:
            raise NotFree(f"admit: row {row} is taken")
        needed = -(-len(stamps) // self._size)
        if needed > self._stack.num_free:
            raise OutOfSlots(f"admit: {needed} blocks are needed, {self._stack.num_free} are free")
        memory, blocks = self._memory, self._stack.acquire(needed).long()
        memory.table[row, :needed] = blocks
        slots = (blocks[:, None] * self._size + torch.arange(self._size, device=self._device)).flatten()
        memory.slots[slots[: len(stamps)]] = self._numbers(stamps)
        memory.lengths[row] = len(stamps)
        self._live[row] = True

    def release(self, row: int) -> None:
        """The row's blocks are free again."""
        self._between_captures("release")
        self._check_row("release", row)
        if not self._live[row]:
            raise NotHeld(f"release: row {row} is empty")
        memory = self._memory
        self._stack.release([block for block in memory.table[row].tolist() if block != NO_BLOCK])
        memory.table[row] = NO_BLOCK
        memory.lengths[row] = 0
        self._live[row] = False

    def widen(self, width: int) -> None:
        """The table moves to new memory; every graph is stale from now on."""
        self._between_captures("widen")
        used = int((self._memory.table != NO_BLOCK).sum(1).max())
        if width < max(used, 1):
            raise InvalidArgument(f"widen: width={width}, a row has {used} blocks")
        table = torch.full((self._rows + 1, width), NO_BLOCK, dtype=torch.int64, device=self._device)
        kept = min(width, self._width)
        table[:, :kept] = self._memory.table[:, :kept]
        self._memory = self._memory._replace(table=table)
        self._width = width
        self._graphs.clear()

    def begin_capture(self, lanes: int) -> None:
        """The step of a batch of `lanes` is captured."""
        self._between_captures("begin_capture")
        if not 1 <= lanes <= self._rows:
            raise InvalidArgument(f"begin_capture: lanes={lanes} is not one of 1..{self._rows}")
        self._stack.begin_capture()
        self._memory.rows.fill_(self._rows)
        answers = (
            torch.zeros(lanes, *rest, dtype=torch.int64, device=self._device)
            for rest in ((), (), (self._width * self._size,))
        )
        memory = self._memory._replace(**dict(zip(("statuses", "reaches", "contexts"), answers, strict=True)))
        put = self._writer(lanes)
        step = partial(_step, memory, self._stack, lanes, self._size, put)
        self._capture = lanes, begin(step, self._device), memory, put

    def end_capture(self) -> None:
        """The captured graph takes the place of an older one of its size."""
        if self._capture is None:
            raise InvalidArgument("end_capture: no capture is active")
        lanes, capture, memory, put = self._capture
        self._graphs[lanes] = Graph(capture.end(), memory, put)
        self._known_sizes.add(lanes)
        self._capture = None
        self._stack.end_capture()

    def replay(self, lanes: int, rows: Sequence[int], stamps: Sequence[int]) -> None:
        """Runs the graph of `lanes`; returns before the device is done."""
        self._between_captures("replay")
        if len(rows) > lanes or len(rows) != len(stamps) or len(set(rows)) < len(rows):
            raise InvalidArgument(f"replay: rows {list(rows)} with {len(stamps)} stamps in {lanes} lanes")
        for row in rows:
            self._check_row("replay", row)
            if not self._live[row]:
                raise InvalidArgument(f"replay: row {row} is empty")
        if lanes not in self._known_sizes:
            raise NotCaptured(f"replay: no graph of {lanes} lanes was captured")
        if lanes not in self._graphs:
            raise StaleGraph(f"replay: the graph of {lanes} lanes was captured before the table moved")
        padding = [self._rows] * (lanes - len(rows))
        self._memory.rows[:lanes] = self._numbers([*rows, *padding])
        self._memory.stamps[:lanes] = self._numbers([*stamps, *padding])
        graph = self._graphs[lanes]
        graph.replay()
        self._stack.replayed()
        self._last = len(rows), graph.memory

    def collect(self) -> list[Lane]:
        """Returns a Lane for each row of the last replay."""
        if self._last is None:
            return []
        n, memory = self._last
        answers = (answer[:n].tolist() for answer in (memory.statuses, memory.reaches, memory.contexts))
        return [Lane(status, context[:reach]) for status, reach, context in zip(*answers, strict=True)]

    def tables(self) -> list[list[int]]:
        """The block tables, from the device."""
        tables: list[list[int]] = self._memory.table[: self._rows].tolist()
        return tables

    def lengths(self) -> list[int]:
        """Tokens in each row, from the device."""
        lengths: list[int] = self._memory.lengths[: self._rows].tolist()
        return lengths

    def free_blocks(self) -> list[int]:
        """The device's stack as far as its own top says, bottom first."""
        free: list[int] = self._stack.stack[: int(self._stack.top)].tolist()
        return free

    def memory(self) -> list[int]:
        """The stamp in each slot, from the device."""
        stamps: list[int] = self._memory.slots[:-1].tolist()
        return stamps

    def _writer(self, lanes: int) -> Put:
        """The write of a graph of so many lanes.

        It may not hold this object: a cycle is collected at any time, and what is freed during a capture breaks it.
        """
        return partial(_put, self._size)

    def _numbers(self, numbers: Sequence[int]) -> torch.Tensor:
        pinned = torch.tensor(numbers, dtype=torch.int64, pin_memory=self._device.type == "cuda")
        return pinned.to(self._device, non_blocking=True)

    def _check_row(self, operation: str, row: int) -> None:
        if not 0 <= row < self._rows:
            raise InvalidArgument(f"{operation}: row {row} is not one of 0..{self._rows - 1}")

    def _between_captures(self, operation: str) -> None:
        if self._capture is not None:
            raise CaptureActive(f"{operation}: a graph capture is active; call it between captures")


def on_device(rows: int, width: int, blocks: int, block_size: int) -> DecodeGraphs:
    """Our graphs on a card."""
    return DecodeGraphs(rows, width, blocks, block_size, "cuda")


def slots_of(memory: Memory, tokens: Tokens, size: int) -> torch.Tensor:
    """The slot of each token, int64 [lane], in blocks of `size` slots; where no token is, the scrap: the last slot."""
    return torch.where(tokens.grows, tokens.blocks * size + tokens.positions % size, len(memory.slots) - 1)


def _put(size: int, memory: Memory, tokens: Tokens) -> None:
    """Writes by indexing."""
    slots = slots_of(memory, tokens, size)
    memory.slots.index_put_((slots,), memory.stamps[: len(slots)])


def _step(memory: Memory, stack: BlockStack, lanes: int, size: int, put: Put) -> None:
    """One token for the row of each lane. Everything stays on the device, padded lanes in the scrap."""
    scrap_row, width = len(memory.lengths) - 1, memory.table.shape[1]
    rows = memory.rows[:lanes]
    lengths = memory.lengths[rows]
    real = rows != scrap_row
    full = lengths >= width * size
    wanted, taken, served = memory.wanted[:lanes], memory.taken[:lanes], memory.served[:lanes]
    wanted.copy_(real & ~full & (lengths % size == 0))
    stack.acquire_captured(wanted, taken, served)
    refused = served == 2
    grows = real & ~full & ~refused
    nth = (lengths // size).clamp(max=width - 1)
    blocks = torch.where(served == 1, taken[:, 0].long(), memory.table[rows, nth])
    memory.table.index_put_((rows, nth), torch.where(real, blocks, NO_BLOCK))
    put(memory, Tokens(rows, blocks, lengths, grows))
    memory.lengths.index_put_((rows,), lengths + grows)
    memory.statuses[:lanes] = torch.where(full, FULL, torch.where(refused, REFUSED, DONE))
    memory.reaches[:lanes] = lengths + grows
    places = memory.table[rows][:, :, None] * size + torch.arange(size, device=rows.device)
    memory.contexts[:lanes] = memory.slots[places.flatten(1).clamp(min=0)]
