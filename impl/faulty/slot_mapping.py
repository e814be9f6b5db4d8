"""Faults of slot_mapping."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.slot_mapping.contract import PAD_SLOT
from kvlockstep.reference.slot_mapping.mapping import SlotMapping


class Persistent(SlotMapping):
    """Keeps the buffer and the gathered table of the batch before, as persistent tensors do."""

    def __init__(self, rows: int, width: int, block_size: int, tokens: int) -> None:
        super().__init__(rows, width, block_size, tokens)
        self._buffer = [PAD_SLOT] * tokens
        self._gathered = [[0] * width for _ in range(rows)]


@fault("map-tail-kept", law="padding", seen=("sglang#26292",))
class TailKept(Persistent):
    """The buffer keeps the slots of a larger batch behind a smaller one."""

    def slots(self, batch: Sequence[int], starts: Sequence[int], positions: Sequence[int]) -> list[int]:
        self._buffer[: len(positions)] = super().slots(batch, starts, positions)[: len(positions)]
        return list(self._buffer)


@fault("map-padded-rows-kept", law="padding", seen=("TensorRT-LLM#13278",))
class PaddedRowsKept(Persistent):
    """Rows behind a batch keep the blocks of a larger batch."""

    def gather(self, batch: Sequence[int], padded: int) -> list[list[int]]:
        rows = super().gather(batch, padded)
        for place, row in enumerate(rows[: len(batch)]):
            self._gathered[place][: len(row)] = row
        return [*rows[: len(batch)], *(list(row) for row in self._gathered[len(batch) : padded])]


@fault("map-padding-is-slot-0", law="padding", seen=("sglang#32477",))
class PadsWithSlotZero(SlotMapping):
    """Places behind the batch are slot 0, which belongs to a block."""

    def slots(self, batch: Sequence[int], starts: Sequence[int], positions: Sequence[int]) -> list[int]:
        found = super().slots(batch, starts, positions)
        return found[: len(positions)] + [0] * (len(found) - len(positions))


@fault("map-slots-32-bits", law="slot_mapping", seen=("flashinfer#3136",))
class NarrowSlots(SlotMapping):
    """Slots are computed in 32 bits and wrap around."""

    def _slot(self, blocks: Sequence[int], position: int) -> int:
        return (super()._slot(blocks, position) + (1 << 31)) % (1 << 32) - (1 << 31)


@fault("map-shard-offset", law="slot_mapping", seen=("mutant",))
class OffsetByPosition(SlotMapping):
    """With context parallelism, a block offset is that of the position, not that of the own part."""

    def _slot(self, blocks: Sequence[int], position: int) -> int:
        if super()._slot(blocks, position) == PAD_SLOT:
            return PAD_SLOT
        return blocks[position // (self._size * self._ranks)] * self._size + position % self._size


@fault("map-shard-other-rank", law="slot_mapping", seen=("mutant",))
class MapsForeignTokens(SlotMapping):
    """With context parallelism the tokens of other workers get slots of this one."""

    def _slot(self, blocks: Sequence[int], position: int) -> int:
        return blocks[position // (self._size * self._ranks)] * self._size + position // self._ranks % self._size


@fault("map-uncommitted", law="slot_mapping", seen=("vllm#45704",))
class ReadsTheHost(SlotMapping):
    """Slots come from the rows on the host, which the device does not have yet."""

    def slots(self, batch: Sequence[int], starts: Sequence[int], positions: Sequence[int]) -> list[int]:
        seen, self._committed = (
            self._committed,
            [host or old for host, old in zip(self._rows, self._committed, strict=True)],
        )
        try:
            padded = [row + [0] * (self._width - len(row)) for row in self._committed]
            self._committed = padded
            return super().slots(batch, starts, positions)
        finally:
            self._committed = seen


@fault("map-batch-order", law="slot_mapping", seen=("mutant",))
class RowsInOrder(SlotMapping):
    """Tokens of request i are mapped by row i, whichever row the request has."""

    def slots(self, batch: Sequence[int], starts: Sequence[int], positions: Sequence[int]) -> list[int]:
        seen, self._committed = self._committed, [row + [0] * (self._width - len(row)) for row in self._committed]
        try:
            return super().slots(range(len(batch)), starts, positions)
        finally:
            self._committed = seen


@fault("map-gather-order", law="gather_exact", seen=("mutant",))
class GathersInOrder(SlotMapping):
    """The table of a forward has rows 0, 1, 2 of the requests, whichever the batch names."""

    def gather(self, batch: Sequence[int], padded: int) -> list[list[int]]:
        return super().gather(range(len(batch)), padded)


@fault("map-gather-last-block", law="gather_exact", seen=("mutant",))
class GathersWholeTiles(SlotMapping):
    """A gather loses the last block of a row that is full."""

    def gather(self, batch: Sequence[int], padded: int) -> list[list[int]]:
        rows = super().gather(batch, padded)
        return [row[: self._width - 1] if i < len(batch) else row for i, row in enumerate(rows)]


@fault("map-second-append", law="structure", seen=("mutant",))
class SecondAppendOverwrites(SlotMapping):
    """A second append before the commit begins where the first one began."""

    def append(self, row: int, blocks: Sequence[int]) -> None:
        start = min(len(self._committed[row]), len(self._rows[row]))
        self._rows[row] = [*self._rows[row][:start], *blocks, *self._rows[row][start + len(blocks) :]]


@fault("map-move-keeps-source", law="structure", seen=("TensorRT-LLM#13278",))
class MoveKeepsSource(SlotMapping):
    """A moved row stays in its old place as well."""

    def move(self, source: int, target: int) -> None:
        self._rows[target] = list(self._rows[source])


@fault("map-add-appends", law="structure", seen=("mutant",))
class AddAppends(SlotMapping):
    """A new row keeps the blocks of its predecessor behind its own."""

    def add(self, row: int, blocks: Sequence[int]) -> None:
        self._rows[row] = [*blocks, *self._rows[row][len(blocks) :]]


@fault("map-swap-one-way", law="structure", seen=("mutant",))
class SwapsOneWay(SlotMapping):
    """A swap copies the second row onto the first, and leaves it where it was."""

    def swap(self, one: int, other: int) -> None:
        self._rows[one] = list(self._rows[other])


@fault("map-mapping-commits", law="atomicity", seen=("mutant",))
class MappingCommits(SlotMapping):
    """Mapping a batch commits the rows of the batch."""

    def slots(self, batch: Sequence[int], starts: Sequence[int], positions: Sequence[int]) -> list[int]:
        found = super().slots(batch, starts, positions)
        for row in batch:
            self._committed[row] = list(self._rows[row])
        return found
