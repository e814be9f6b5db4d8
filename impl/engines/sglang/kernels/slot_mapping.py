"""slot_mapping on SGLang's request table (0.5.23), with the kernels that write it and that read the slots of drafts.

A row of `req_to_token` has the slot of each token. `write_cache_indices` writes a request's prefix and the slots of its
extend, `assign_req_to_token_pool` the slots of drafts behind those. For a draft model or for verification one of three
kernels reads as many slots of each request, and `fill_front_out_cache_loc` packs the first few of each: those that are
accepted. Here a block is `block_size` slots of a row that follow one another. Source: sglang/srt/mem_cache/
allocation.py, sglang/kernels/ops/memory/common.py and sglang/kernels/ops/speculative/cache_locs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from kvlockstep.impl.engines.cut import cut
from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.sglang.get import GET
from kvlockstep.impl.interpreted import DEVICE, INTERPRETED, tl, triton
from kvlockstep.reference.slot_mapping.contract import PAD_SLOT

ENGINE = find("sglang", "kernels/ops/speculative/cache_locs.py", GET)
NAMES = ("sglang.kernels.ops.speculative.cache_locs", "sglang.kernels.ops.memory.common")
GIVEN: dict[str, dict[str, Any]] = {
    "sglang.srt.utils": {
        **dict.fromkeys(("is_cpu", "is_hip", "is_musa", "is_npu", "is_xpu"), lambda: False),
        "is_cuda": lambda: True,
        "next_power_of_2": triton.next_power_of_2,
    },
    "sglang.srt.platforms": {"current_platform": SimpleNamespace(is_out_of_tree=lambda: False)},
}
APART = Apart(ENGINE, NAMES, GIVEN)
drafts, common = APART.load(*NAMES)
MODULE = "sglang.srt.mem_cache.allocation"
writes = cut(
    ENGINE,
    MODULE,
    ("write_cache_indices", "assign_req_to_token_pool", "assign_req_to_token_pool_func"),
    {
        "__name__": MODULE,
        "torch": torch,
        "triton": triton,
        "tl": tl,
        "next_power_of_2": triton.next_power_of_2,
        "write_req_to_token_pool_triton": common.write_req_to_token_pool_triton,
        "attention_backends": lambda: ("triton", "triton"),
        "support_triton": lambda _backend: True,
        "is_pin_memory_available": lambda _device: False,
        "_is_cpu": False,
    },
)
UNUSED, TORN = -7, -2


class RequestTable:
    """A commit writes all rows that have changed: new ones in one launch, those that have grown in another.

    The table has 32 bits for a slot. Whatever it has behind the rows is compared as well: a row that is not as it
    should be has a block TORN behind its blocks.
    """

    engine = "sglang"
    version = ENGINE.version
    interpreted = INTERPRETED
    any_batch = True
    far_slots = False

    def __init__(self, rows: int, width: int, block_size: int, tokens: int) -> None:
        self._size, self._tokens = block_size, tokens
        self._wanted: list[list[int]] = [[] for _ in range(rows)]
        self._lengths, self._new = [0] * rows, set[int]()
        # Windows of drafts may reach beyond a row, as those of the engine do beyond what is accepted.
        columns = width * block_size + self._room(tokens)
        self._table = torch.full((rows, columns), UNUSED, dtype=torch.int32, device=DEVICE)
        self._twin = self._table.cpu()
        self._pool = SimpleNamespace(req_to_token=self._table, device=DEVICE)
        self._calls = 0

    def _room(self, tokens: int) -> int:
        """How far behind a row what is read may reach, for a buffer of so many tokens."""
        return tokens

    def add(self, row: int, blocks: Sequence[int]) -> None:
        self._wanted[row] = self._slots_of(blocks)
        self._new.add(row)

    def append(self, row: int, blocks: Sequence[int]) -> None:
        self._wanted[row] += self._slots_of(blocks)

    def commit(self) -> None:
        new = sorted(self._new)
        grown = [i for i, row in enumerate(self._wanted) if i not in self._new and len(row) > self._lengths[i]]
        if new:
            self._extend(new)
        if grown:
            starts, ends = self._lengths, [len(row) for row in self._wanted]
            found = [slot for i in grown for slot in self._wanted[i][starts[i] :]]
            offsets = (self._index([numbers[i] for i in grown]) for numbers in (starts, ends))
            writes.assign_req_to_token_pool_func(
                self._index(grown), self._table, *offsets, self._index(found), len(grown)
            )
        for i, row in enumerate(self._wanted):
            self._twin[i, : len(row)] = torch.tensor(row, dtype=torch.int32)
            self._lengths[i] = len(row)
        self._new.clear()

    def committed(self) -> list[list[int]]:
        found = self._table.cpu()
        same = (found == self._twin).all(1).tolist()
        blocks: list[list[int]] = [
            (row[: length : self._size] // self._size).tolist()
            for row, length in zip(found, self._lengths, strict=True)
        ]
        return [row if whole else [*row, TORN] for row, whole in zip(blocks, same, strict=True)]

    def slots(self, batch: Sequence[int], starts: Sequence[int], positions: Sequence[int]) -> list[int]:
        counts = [end - start for start, end in pairwise(starts)]
        out = torch.full((self._tokens,), PAD_SLOT, dtype=torch.int64, device=DEVICE)
        if positions:
            firsts = [positions[start] if n else 0 for start, n in zip(starts, counts, strict=False)]
            window = self._window(batch, firsts, max(counts))
            drafts.fill_front_out_cache_loc_func(self._index(counts), window, out)
        found: list[int] = out.tolist()
        return found

    def _window(self, batch: Sequence[int], firsts: Sequence[int], columns: int) -> torch.Tensor:
        """The slots of so many columns from the first one on, request after request, by each kernel in turn."""
        self._calls += 1
        rows, begin, n = self._index(batch), self._index(firsts), len(batch)
        if self._calls % 3 == 0:
            window = torch.empty(n * columns, dtype=torch.int64, device=DEVICE)
            drafts.assign_draft_cache_locs_contiguous_func(rows, self._table, begin, window, 1, columns)
            return window
        with APART.inside():  # the launchers ask which platform it is
            if self._calls % 3 == 1:
                found: torch.Tensor = drafts.assign_extend_cache_locs_uniform_func(
                    rows, self._table, begin, n, columns, DEVICE
                )
            else:
                found = drafts.assign_extend_cache_locs_func(
                    rows, self._table, begin, begin + columns, n, columns, DEVICE
                )
            return found

    def _extend(self, new: Sequence[int]) -> None:
        """Writes whole rows: the first half of each as a prefix that was cached."""
        rows = [self._wanted[i] for i in new]
        prefixes = [self._index(row[: len(row) // 2]) for row in rows]
        found = self._index([slot for row in rows for slot in row[len(row) // 2 :]])
        lengths = [len(row) // 2 for row in rows], [len(row) for row in rows], [-(-len(row) // 2) for row in rows]
        pairs = [numbers for n in lengths for numbers in (self._index(n), torch.tensor(n))]
        writes.write_cache_indices(found, self._index(new), torch.tensor(new), *pairs, prefixes, self._pool)

    def _slots_of(self, blocks: Sequence[int]) -> list[int]:
        return [block * self._size + i for block in blocks for i in range(self._size)]

    def _index(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=DEVICE)
