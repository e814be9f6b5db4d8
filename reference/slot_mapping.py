"""slot_mapping: the block tables of a batch, and the slot of each of its tokens.

A row is the block table of one request. Rows change on the host, and `commit` brings them to where kernels read them.
Source: vLLM's BlockTable and BlockTables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.traits import trait

PAD_SLOT = -1
NULL_BLOCK = 0


@runtime_checkable
class SlotMappingTarget(Protocol):
    """Factory `make(rows, width, block_size, tokens)`: that many rows of up to `width` blocks of `block_size` tokens,
    and a buffer for the slots of `tokens` tokens.

    Nothing is refused: the caller names rows that exist, blocks that fit and positions that a committed row covers.
    """

    def add(self, row: int, blocks: Sequence[int]) -> None:
        """The row has these blocks now, and no others."""

    def append(self, row: int, blocks: Sequence[int]) -> None:
        """The row has these blocks behind those that it has."""

    def commit(self) -> None:
        """What was done to the rows since the last commit counts from now on."""

    def committed(self) -> Sequence[Sequence[int]]:
        """Returns the blocks of every row as of the last commit."""

    def slots(self, batch: Sequence[int], starts: Sequence[int], positions: Sequence[int]) -> Sequence[int]:
        """Returns the whole buffer, `tokens` numbers. The tokens [starts[i], starts[i + 1]) belong to row batch[i] and
        stand at `positions` of its sequence; each has its slot. Behind them all is PAD_SLOT.
        """


class SlotMappingOptional(Protocol):
    """Methods of a slot_mapping that may be left out. A target that has one announces it with a trait."""

    def clear(self, row: int) -> None:
        """The row has no blocks."""

    def move(self, source: int, target: int) -> None:
        """The target has the blocks of the source, and the source has none. They are different rows."""

    def swap(self, one: int, other: int) -> None:
        """Two rows change places."""

    def gather(self, batch: Sequence[int], padded: int) -> Sequence[Sequence[int]]:
        """Returns the first `padded` rows of the table that a forward reads: row i has the blocks of row batch[i].
        A row behind the batch is padding, and has NULL_BLOCK in all its `width` places.
        """

    def shard(self, ranks: int, rank: int, interleave: int) -> None:
        """The tokens of a sequence are spread over `ranks` workers, `interleave` tokens at a time, and this one is
        number `rank`. A block then stands for `block_size` tokens of each worker. A token of another one has PAD_SLOT.
        """


@dataclass(frozen=True)
class MappingTraits:
    """What a slot_mapping target declares of itself; read from attributes of the same names."""

    any_batch: bool = trait(False, "A batch may be any rows in any order. Else it is rows 0, 1, 2 and so on.")
    can_move: bool = trait(
        False,
        "There are `clear(row)`, `move(source, target)` and `swap(one, other)`.",
        method=("clear", "move", "swap"),
    )
    can_gather: bool = trait(False, "There is `gather(batch, padded)`.", method="gather")
    can_shard: bool = trait(
        False, "There is `shard(ranks, rank, interleave)`, for context parallelism.", method="shard"
    )


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
