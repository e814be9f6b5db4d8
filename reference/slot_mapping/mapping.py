"""slot_mapping in plain lists."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.slot_mapping.contract import NULL_BLOCK, PAD_SLOT


class SlotMapping:
    """`rows` rows of at most `width` blocks of `block_size` tokens, all empty, and a buffer of `tokens` slots.

    Raises InvalidArgument for a size below 1.
    """

    any_batch = can_move = can_gather = can_shard = True

    def __init__(self, rows: int, width: int, block_size: int, tokens: int) -> None:
        if min(rows, width, block_size, tokens) < 1:
            raise InvalidArgument(f"{rows=}, {width=}, {block_size=}, {tokens=}: sizes are positive")
        self._width, self._size, self._tokens = width, block_size, tokens
        self._rows: list[list[int]] = [[] for _ in range(rows)]
        self._committed: list[list[int]] = [[] for _ in range(rows)]
        self._ranks, self._rank, self._interleave = 1, 0, 1

    def add(self, row: int, blocks: Sequence[int]) -> None:
        self._rows[row] = list(blocks)

    def append(self, row: int, blocks: Sequence[int]) -> None:
        self._rows[row] = [*self._rows[row], *blocks]

    def clear(self, row: int) -> None:
        self._rows[row] = []

    def move(self, source: int, target: int) -> None:
        self._rows[target], self._rows[source] = self._rows[source], []

    def swap(self, one: int, other: int) -> None:
        self._rows[one], self._rows[other] = self._rows[other], self._rows[one]

    def commit(self) -> None:
        self._committed = [list(row) for row in self._rows]

    def committed(self) -> list[list[int]]:
        return [list(row) for row in self._committed]

    def shard(self, ranks: int, rank: int, interleave: int) -> None:
        self._ranks, self._rank, self._interleave = ranks, rank, interleave

    def slots(self, batch: Sequence[int], starts: Sequence[int], positions: Sequence[int]) -> list[int]:
        buffer = [PAD_SLOT] * self._tokens
        for row, start, stop in zip(batch, starts, starts[1:], strict=False):
            for token in range(start, stop):
                buffer[token] = self._slot(self._committed[row], positions[token])
        return buffer

    def gather(self, batch: Sequence[int], padded: int) -> list[list[int]]:
        rows = [list(self._committed[row]) for row in batch]
        return rows + [[NULL_BLOCK] * self._width for _ in range(padded - len(batch))]

    def _slot(self, blocks: Sequence[int], position: int) -> int:
        covers = self._size * self._ranks
        offset = slot_offset(position % covers, self._ranks, self._rank, self._interleave)
        return PAD_SLOT if offset is None else blocks[position // covers] * self._size + offset


def slot_offset(position: int, ranks: int, rank: int, interleave: int) -> int | None:
    """Counts the tokens of a block that `rank` keeps before `position` of it; None if it does not keep that one.

    The tokens are dealt out like cards: `interleave` to each rank in turn.
    """
    deal = [owner for owner in range(ranks) for _ in range(interleave)]
    owners = deal * (position // len(deal) + 1)
    return owners[:position].count(rank) if owners[position] == rank else None
