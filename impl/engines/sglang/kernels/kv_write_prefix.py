"""kv_write on what SGLang commits drafts with (0.5.23): of the rows of each request, those that were accepted.

A batch is [request, row] slots and how many rows of each request count. The rows behind them have slots as well, which
are not to be written. Here the judge's rows are cut into requests of up to WIDTH rows, each with its padding behind
the others, and padding has a slot that exists. Source: sglang/srt/mem_cache/memory_pool.py
(`set_kv_buffer_prefix_valid`) and sglang/kernels/ops/kvcache/cache_move.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kvlockstep.impl.engines.arena_writer import ArenaWriter
from kvlockstep.impl.engines.cut import cut
from kvlockstep.impl.engines.sglang.kernels.kv_store import ENGINE, moving
from kvlockstep.impl.interpreted import triton
from kvlockstep.reference.kv_write.contract import PAD_SLOT, Rows

WIDTH = 3
pool = cut(
    ENGINE,
    "sglang.srt.mem_cache.memory_pool",
    ("_set_kv_buffer_prefix_valid_impl", "_set_kv_buffer_prefix_valid_impl_fp8"),
    {
        "torch": torch,
        "triton": triton,
        "set_kv_buffer_prefix_valid_tiled": moving.set_kv_buffer_prefix_valid_tiled,
        "set_kv_buffer_prefix_valid_tiled_fp8": moving.set_kv_buffer_prefix_valid_tiled_fp8,
    },
)


class Drafts(NamedTuple):
    """K and V [request x row, dim], their slots [request, row] and how many rows of each request are accepted."""

    keys: torch.Tensor
    values: torch.Tensor
    slots: torch.Tensor
    accepted: torch.Tensor


class PrefixWriter(ArenaWriter):
    """A row of a slot is moved in tiles of bytes, K and V with one width."""

    engine = "sglang"
    version = ENGINE.version
    own_strides = latent = True

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        if slots:
            self.launch(layer, self._drafts(slots, keys, values))

    def launch(self, layer: int, drafts: Drafts) -> None:
        keys, values = self.slots_of(layer)
        pool._set_kv_buffer_prefix_valid_impl(
            *(drafts.keys, drafts.values, keys, values, drafts.slots, drafts.accepted),
            row_dim=self.arena.geometry.key_dim,
            store_dtype=keys.dtype,
        )

    def slots_of(self, layer: int) -> list[torch.Tensor]:
        """K and V of a layer: [slot, dim]."""
        return [self.arena.cache(layer, plane)[:, 0, 0] for plane in (0, 1)]

    def _drafts(self, slots: Sequence[int], keys: Rows, values: Rows) -> Drafts:
        requests: list[list[int]] = []
        for i, slot in enumerate(slots):
            last = requests[-1] if requests else []
            if not last or len(last) == WIDTH or (slot != PAD_SLOT and slots[last[-1]] == PAD_SLOT):
                requests.append([])
            requests[-1].append(i)
        # Where a request is shorter, its last row stands again, and is not accepted.
        order = [row for request in requests for row in [*request, *request[-1:] * (WIDTH - len(request))]]
        arena = self.arena
        found = arena.slots([max(slots[i], 0) for i in order]).view(-1, WIDTH)
        accepted = [sum(slots[i] != PAD_SLOT for i in request) for request in requests]
        k, v = (arena.rows(part, plane)[order, 0] for plane, part in enumerate((keys, values)))
        return Drafts(k, v, found, torch.tensor(accepted, dtype=torch.int32, device=arena.device))
