"""slot_mapping on the block tables of vLLM's two model runners, with their kernels and their own launchers.

`BlockTable` is the first runner's: rows on the host, copied as a whole; a batch is rows 0, 1, 2 and so on.
`BlockTables` is the second runner's: changes are staged and written by a kernel, and a batch names its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvlockstep.impl.engines.vllm.kernels import APART, ENGINE, first_runner, second_runner
from kvlockstep.impl.interpreted import DEVICE, INTERPRETED


class FirstRunner:
    """BlockTable of one KV group."""

    engine = "vllm"
    version = ENGINE.version
    interpreted = INTERPRETED
    can_move = can_shard = True

    def __init__(self, rows: int, width: int, block_size: int, tokens: int) -> None:
        self._table = first_runner.BlockTable(block_size, rows, width, tokens, False, torch.device(DEVICE), 1)
        self._rows = rows
        self._lengths = [0] * rows
        self.clear, self.move, self.swap = self._table.clear_row, self._table.move_row, self._table.swap_row

    def add(self, row: int, blocks: Sequence[int]) -> None:
        self._table.add_row(list(blocks), row)

    def append(self, row: int, blocks: Sequence[int]) -> None:
        self._table.append_row(list(blocks), row)

    def commit(self) -> None:
        self._table.commit_block_table(self._rows)
        self._lengths = self._table.num_blocks_per_row.tolist()

    def committed(self) -> list[list[int]]:
        rows = self._table.get_device_tensor(self._rows).tolist()
        return [row[:length] for row, length in zip(rows, self._lengths, strict=True)]

    def shard(self, ranks: int, rank: int, interleave: int) -> None:
        table = self._table
        table.dcp_world_size, table.dcp_rank, table.cp_kv_cache_interleave_size = ranks, rank, interleave

    def slots(self, batch: Sequence[int], starts: Sequence[int], positions: Sequence[int]) -> list[int]:
        where = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
        at = torch.tensor(positions, dtype=torch.int64, device=DEVICE)
        self._table.compute_slot_mapping(len(batch), where, at)
        found: list[int] = self._table.slot_mapping.gpu.tolist()
        return found


class SecondRunner:
    """BlockTables of one KV group.

    Its kernel computes slots in 32 bits; no pool of today needs more. Staged writes are applied by programs that run
    side by side, so that a row must not be written twice at one place between commits. The runner adds a request once
    in a step, behind the removal of those that have ended (`GPUModelRunner.add_requests`).
    """

    engine = "vllm"
    version = ENGINE.version
    interpreted = INTERPRETED
    any_batch = can_gather = can_shard = True
    far_slots = replaces_staged = False

    def __init__(self, rows: int, width: int, block_size: int, tokens: int) -> None:
        with APART.inside():  # buffers ask for the platform when they are made
            self._tables = second_runner.BlockTables([block_size], rows, tokens, [width], torch.device(DEVICE))
        self._lengths = [0] * rows

    def add(self, row: int, blocks: Sequence[int]) -> None:
        self._tables.append_block_ids(row, (list(blocks),), overwrite=True)

    def append(self, row: int, blocks: Sequence[int]) -> None:
        self._tables.append_block_ids(row, (list(blocks),), overwrite=False)

    def commit(self) -> None:
        with APART.inside():
            self._tables.apply_staged_writes()
        self._lengths = self._tables.num_blocks.np[0].tolist()

    def committed(self) -> list[list[int]]:
        rows = self._tables.block_tables[0].gpu.tolist()
        return [row[:length] for row, length in zip(rows, self._lengths, strict=True)]

    def shard(self, ranks: int, rank: int, interleave: int) -> None:
        self._tables.cp_size, self._tables.cp_rank, self._tables.cp_interleave = ranks, rank, interleave

    def gather(self, batch: Sequence[int], padded: int) -> list[list[int]]:
        (table,) = self._tables.gather_block_tables(self._index(batch), padded)
        rows = table.tolist()
        found: list[list[int]] = [
            row[: self._lengths[request]] for row, request in zip(rows, batch, strict=False)
        ] + rows[len(batch) :]
        return found

    def slots(self, batch: Sequence[int], starts: Sequence[int], positions: Sequence[int]) -> list[int]:
        at = torch.tensor(positions, dtype=torch.int64, device=DEVICE)
        whole = self._tables.max_num_batched_tokens
        mapped = self._tables.compute_slot_mappings(self._index(batch), self._index(starts), at, whole)
        found: list[int] = mapped[0].tolist()
        return found

    def _index(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)
