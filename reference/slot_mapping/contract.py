"""The contract of slot_mapping: the block tables of a batch, and the slot of each of its tokens.

A row is the block table of one request. Rows change on the host, and `commit` brings them to where kernels read them.
Source: vLLM's BlockTable and BlockTables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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
    far_slots: bool = trait(True, "Slots may take more than 32 bits. Else a pool has less than 2^31 slots.")
    replaces_staged: bool = trait(
        True, "A row that has changed since the last commit may get new blocks. Else it only grows until the commit."
    )
    can_move: bool = trait(
        False,
        "There are `clear(row)`, `move(source, target)` and `swap(one, other)`.",
        method=("clear", "move", "swap"),
    )
    can_gather: bool = trait(False, "There is `gather(batch, padded)`.", method="gather")
    can_shard: bool = trait(
        False, "There is `shard(ranks, rank, interleave)`, for context parallelism.", method="shard"
    )
