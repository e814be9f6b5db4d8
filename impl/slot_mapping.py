"""slot_mapping on tensors: tables on the host and on the device, and one buffer of slots at a fixed address."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.slot_mapping.contract import NULL_BLOCK, PAD_SLOT


class SlotMapping:
    """`rows` rows of at most `width` blocks of `block_size` tokens. Meets SlotMappingTarget with all its traits.

    `table`, int32 [row, width], is what kernels read; `batch_table`, of the same shape, has the rows of the last
    gathered batch; `buffer`, int64 [tokens], has the slots of the last batch. All are on `device`, and their addresses
    never change, so that captured graphs may read them. Raises InvalidArgument for a size below 1.
    """

    any_batch = can_move = can_gather = can_shard = True

    def __init__(self, rows: int, width: int, block_size: int, tokens: int, device: str | torch.device = "cpu") -> None:
        if min(rows, width, block_size, tokens) < 1:
            raise InvalidArgument(f"{rows=}, {width=}, {block_size=}, {tokens=}: sizes are positive")
        self._size = block_size
        self._host = torch.zeros(rows, width, dtype=torch.int32)
        self._lengths = torch.zeros(rows, dtype=torch.int64)
        self._committed_lengths = self._lengths.clone()
        self.table = torch.zeros(rows, width, dtype=torch.int32, device=device)
        self.batch_table = torch.full_like(self.table, NULL_BLOCK)
        self.buffer = torch.full((tokens,), PAD_SLOT, dtype=torch.int64, device=device)
        self._ranks, self._rank, self._interleave = 1, 0, 1

    def add(self, row: int, blocks: Sequence[int]) -> None:
        """The row has these blocks now, and no others."""
        self._lengths[row] = 0
        self.append(row, blocks)

    def append(self, row: int, blocks: Sequence[int]) -> None:
        """The row has these blocks behind those that it has."""
        start = int(self._lengths[row])
        self._host[row, start : start + len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        self._lengths[row] = start + len(blocks)

    def clear(self, row: int) -> None:
        """The row has no blocks."""
        self._lengths[row] = 0

    def move(self, source: int, target: int) -> None:
        """The target has the blocks of the source, and the source has none."""
        self._host[target] = self._host[source]
        self._lengths[target] = self._lengths[source]
        self._lengths[source] = 0

    def swap(self, one: int, other: int) -> None:
        """Two rows change places."""
        for rows in (self._host, self._lengths):
            rows[[one, other]] = rows[[other, one]]

    def commit(self) -> None:
        """Copies all rows to the device."""
        self.table.copy_(self._host, non_blocking=True)
        self._committed_lengths.copy_(self._lengths)

    def committed(self) -> list[list[int]]:
        """The blocks of every row as of the last commit; waits for the device."""
        rows: list[list[int]] = self.table.tolist()
        return [row[:length] for row, length in zip(rows, self._committed_lengths.tolist(), strict=True)]

    def shard(self, ranks: int, rank: int, interleave: int) -> None:
        """This worker keeps every `ranks`-th run of `interleave` tokens, beginning with run `rank`."""
        self._ranks, self._rank, self._interleave = ranks, rank, interleave

    def slots(self, batch: Sequence[int], starts: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """Fills the whole buffer and returns it: a view, good until the next call."""
        count = len(positions)
        counts = torch.tensor(starts).diff()
        rows = torch.tensor(batch, dtype=torch.int64).repeat_interleave(counts).to(self.table.device)
        at = torch.tensor(positions, dtype=torch.int64).to(self.table.device)
        run, inside = at // self._interleave, at % self._interleave
        block = at // (self._size * self._ranks)
        offset = run // self._ranks * self._interleave % self._size + inside
        found = self.table[rows, block].to(torch.int64) * self._size + offset
        self.buffer[:count] = torch.where(run % self._ranks == self._rank, found, PAD_SLOT)
        self.buffer[count:] = PAD_SLOT
        return self.buffer

    def gather(self, batch: Sequence[int], padded: int) -> list[list[int]]:
        """Fills `batch_table`, and clears it behind the batch; returns the blocks of its first `padded` rows."""
        count = len(batch)
        self.batch_table[:count] = self.table[torch.tensor(batch, dtype=torch.int64, device=self.table.device)]
        self.batch_table[count:] = NULL_BLOCK
        rows: list[list[int]] = self.batch_table[:padded].tolist()
        lengths = [int(self._committed_lengths[row]) for row in batch]
        return [row[:length] for row, length in zip(rows, lengths, strict=False)] + rows[count:]


def on_device(rows: int, width: int, block_size: int, tokens: int) -> SlotMapping:
    """The same on a card."""
    return SlotMapping(rows, width, block_size, tokens, "cuda")
