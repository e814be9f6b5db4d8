"""kv_write on SGLang's fp8 caches (0.5.23), on a card: the interpreter casts to fp8 wrongly.

With sparse attention a latent is cut into tiles of 128 elements with a float32 scale each, and its rotated part stays
as it is: `quantize_k_cache_separate` makes rows of bytes, which `set_mla_kv_buffer` scatters. On HIP the kernel that
scatters casts the whole row. Drafts that are accepted are divided by the scale of a tensor. Source:
sglang/srt/mem_cache/memory_pool.py (`_write_mla_kv_buffer`, `set_kv_buffer_prefix_valid`),
sglang/kernels/ops/quantization/dsa_quant_k_cache.py and sglang/kernels/ops/kvcache/mla_buffer.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.loading import EngineMissing
from kvlockstep.impl.engines.row_bytes import RowBytesWriter
from kvlockstep.impl.engines.sglang.kernels.kv_write import APART, ENGINE, LatentWriter, latent
from kvlockstep.impl.engines.sglang.kernels.kv_write_prefix import Drafts, PrefixWriter, pool
from kvlockstep.impl.interpreted import numbers_are_right
from kvlockstep.reference.kv_write.contract import PAD_SLOT, Rows

if not numbers_are_right:
    raise EngineMissing("sglang's fp8 kernels are judged on a card: Triton's interpreter casts to fp8 wrongly")
NAME = "sglang.kernels.ops.quantization.dsa_quant_k_cache"
(tiles,) = Apart(ENGINE, [NAME], {}).load(NAME)


class CastWriter(LatentWriter):
    """set_mla_kv_buffer_triton_fp8_quant: no scale, what is too large for fp8 saturates."""

    kept = "float8_e4m3fn"
    scale = "one"
    repeats = False

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        if slots:
            rows = self.arena.rows(keys, 0), self.arena.rows(values, 1)
            cache = self.arena.joint(layer)[:, 0].view(torch.uint8)
            latent.set_mla_kv_buffer_triton_fp8_quant(
                *(cache, self.arena.slots(slots), *(row[:, 0] for row in rows), torch.float8_e4m3fn),
                reserved_skip_index=PAD_SLOT,
            )


class PrefixCastWriter(PrefixWriter):
    """Accepted drafts, divided by the scale of a tensor and rounded to the dtype that is given in between."""

    kept = "float8_e4m3fn"
    scale = "tensor"
    quotient = "given"

    def launch(self, layer: int, drafts: Drafts) -> None:
        scales = (float(self.arena.tensor_scale(layer, plane)) for plane in (0, 1))
        pool._set_kv_buffer_prefix_valid_impl_fp8(
            *(drafts.keys, drafts.values, *self.slots_of(layer), *scales, drafts.slots, drafts.accepted),
            row_dim=self.arena.geometry.key_dim,
        )


class TileWriter(RowBytesWriter):
    """Tiles of a latent and its rotated part. The launcher below the one that asks for a rotated part of 64 is used."""

    engine = "sglang"
    version = ENGINE.version
    given = "bfloat16"
    kept = "float8_e4m3fn"
    scale = "row"
    value_kept = "same"
    value_scale = "none"
    keeps_scales = own_dims = own_strides = power_of_two = True
    least_dim = 4  # the engine writes the scales of a row through a view of float32

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        if not slots:
            return
        rows = (self.arena.rows(part, plane).flatten(1) for plane, part in enumerate((keys, values)))
        parts = tiles._quantize_k_cache_fast_separate(*rows, group_size=self.arena.geometry.key_dim)
        with APART.inside():
            latent.set_mla_kv_buffer_triton(
                self._rows.rows(layer), self.arena.slots(slots), *parts, reserved_skip_index=PAD_SLOT
            )
