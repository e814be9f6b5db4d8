"""kv_write on LMDeploy's fp8 caches (0.16.0), on a card: the interpreter casts to fp8 wrongly.

`--quant-policy fp8` has a scale for each tensor, which the caller sets. `fill_kv_cache_blocked_fp8` has one for each
tile of a head. DeepSeek's latent goes through both launchers: its tiles through the second one, with scales that are
powers of two, and its rotated part through the first one, as bits. A token has all of that in one row of bytes. Source:
lmdeploy/pytorch/kernels/cuda/fill_kv_cache.py and backends/cuda/attention/mla.py (`_fill_kv_cache_impl`).
"""

from __future__ import annotations

import torch

from kvlockstep.impl.engines.lmdeploy.kv_write import Batch, FillWriter, QuantPolicy, filling
from kvlockstep.impl.engines.loading import EngineMissing
from kvlockstep.impl.engines.row_bytes import RowBytesWriter
from kvlockstep.impl.interpreted import numbers_are_right
from kvlockstep.reference.kv_write.geometry import Geometry

if not numbers_are_right:
    raise EngineMissing("lmdeploy's fp8 kernels are judged on a card: Triton's interpreter casts to fp8 wrongly")


class Float8Writer(FillWriter):
    """A scale for each tensor. What it cannot express saturates."""

    kept = "float8_e4m3fn"
    scale = "tensor"
    policy = QuantPolicy.FP8

    def _scales(self, layer: int) -> tuple[torch.Tensor, ...]:
        return self.arena.tensor_scale(layer, 0), self.arena.tensor_scale(layer, 1)


class WideFloat8Writer(Float8Writer):
    """`--quant-policy fp8_e5m2`: the same with more range and one bit less of fraction."""

    kept = "float8_e5m2"
    policy = QuantPolicy.FP8_E5M2


class TileWriter(FillWriter):
    """A float32 scale for each tile. The judge's heads are the tiles of one head where they are neighbours."""

    kept = "float8_e4m3fn"
    scale = "row"
    keeps_scales = True
    # Both caches have tiles of one size.
    own_dims = False
    scale_format: str | None = None

    def fill(self, layer: int, batch: Batch, keys: torch.Tensor, values: torch.Tensor) -> None:
        arena = self.arena
        caches = self._caches(layer)
        scales = [arena.row_scales(layer, plane) for plane in (0, 1)]
        if arena.geometry.layout == "NHD":
            keys, values, *caches = (rows.flatten(-2).unsqueeze(-2) for rows in (keys, values, *caches))
            scales = [scale.unsqueeze(-2) for scale in scales]
        else:
            scales = [scale.transpose(1, 2).unsqueeze(-1) for scale in scales]
        filling.fill_kv_cache_blocked_fp8(
            *(keys, values, *caches, *scales),
            *(ends_of(batch), batch.whole, batch.longest, batch.tables),
            group_size=arena.geometry.key_dim,
            kv_layout=self._layout(),
            scale_fmt=self.scale_format,
        )


class PowerTileWriter(TileWriter):
    """The same with scales that are powers of two."""

    power_scales = "above"
    scale_format = "ue8m0"


class LatentWriter(RowBytesWriter, FillWriter):
    """A latent in tiles and its rotated part, in one row of bytes: codes, scales, bits."""

    layouts = "NHD"
    given = "float16 bfloat16"
    kept = "float8_e4m3fn"
    scale = "row"
    value_kept = "same"
    value_scale = "none"
    keeps_scales = True
    power_scales = "above"
    least_dim = 4  # the engine reads the scales of a row through a view of float32

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        super().open(geometry, memory, scales)
        self._calls = 0

    def fill(self, layer: int, batch: Batch, keys: torch.Tensor, values: torch.Tensor) -> None:
        rows = self._rows.rows(layer)
        cache = rows.view(-1, self.arena.geometry.block_size, *rows.shape[1:])
        codes, scales, rest, _ = (cache[..., part] for part in self._rows.parts)
        filling.fill_kv_cache_blocked_fp8(
            *(keys.flatten(1).unsqueeze(1), None, codes.view(torch.float8_e4m3fn), None),
            *(scales.view(torch.float32), None, ends_of(batch), batch.whole, batch.longest, batch.tables),
            group_size=self.arena.geometry.key_dim,
            scale_fmt="ue8m0",
        )
        filling.fill_kv_cache(
            *(values.flatten(1).unsqueeze(1), None, rest.view(values.dtype), None),
            *(batch.starts, batch.lengths, batch.whole, batch.longest, batch.tables),
        )


def ends_of(batch: Batch) -> torch.Tensor:
    """The running sum of the lengths, from 0 on."""
    return torch.cat([batch.starts, (batch.starts + batch.lengths)[-1:]])
