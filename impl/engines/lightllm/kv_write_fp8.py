"""kv_write on LightLLM's fp8 cache of latents (1.0.1), on a card: the interpreter casts to fp8 wrongly.

`--mode triton_fp8kv` keeps a scale of the model's dtype for all of a token, its latent and its rotated part. Here they
are the halves of a row of the judge's, of K and then of V. Source:
lightllm/models/deepseek2/triton_kernel/destindex_copy_kv_fp8.py and layer_infer/transformer_layer_infer.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.lightllm.kv_write import ENGINE, CopyWriter
from kvlockstep.impl.engines.loading import EngineMissing
from kvlockstep.impl.interpreted import numbers_are_right
from kvlockstep.reference.kv_write.contract import Rows

if not numbers_are_right:
    raise EngineMissing("lightllm's fp8 kernel is judged on a card: Triton's interpreter casts to fp8 wrongly")
NAME = "lightllm.models.deepseek2.triton_kernel.destindex_copy_kv_fp8"
(scaled,) = Apart(ENGINE, [NAME], {}).load(NAME)


class LatentWriter(CopyWriter):
    """A scale for each row, in the dtype of the row."""

    layouts = "NHD"
    given = "bfloat16"
    kept = "float8_e4m3fn"
    scale = "row"
    scale_dtype = quotient = "given"
    keeps_scales = own_dims = own_strides = latent = True
    least_dim = 2
    repeats = False

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        where = self.arena.slots(slots)
        for plane, part in enumerate((keys, values) if slots else ()):
            rows, cache = self.arena.rows(part, plane), self.arena.cache(layer, plane)[:, 0]
            half = rows.shape[-1] // 2
            halves = (t[..., side] for t in (rows, cache) for side in (slice(half), slice(half, None)))
            nope, rope, kept_nope, kept_rope = halves
            scales = self.arena.row_scales(layer, plane)
            scaled.destindex_copy_kv_fp8(nope, rope, where, kept_nope, kept_rope, scales)


class HalfLatentWriter(LatentWriter):
    """The same for models in float16."""

    given = "float16"
