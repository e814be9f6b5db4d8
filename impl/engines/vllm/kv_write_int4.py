"""kv_write on vLLM's cache of 4-bit codes (`--kv-cache-dtype int4_per_token_head`), through `reshape_and_cache_int4`.

The engine rotates each row of a head before it is quantised: signs, then Hadamard matrices, as large a power of two as
divides the head dim. The judge's rows are what the rotation gives; the engine gets the rows that it makes them of. In
float32 the rotation and its inverse are exact but for a unit in the last place. A card rotates in bfloat16, so there
the rows would be others. Source: vllm/v1/attention/ops/int4_per_token_head.py.
"""

from __future__ import annotations

from typing import Any

import torch

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.loading import EngineMissing
from kvlockstep.impl.engines.vllm.kernels import ENGINE, GIVEN
from kvlockstep.impl.engines.vllm.kv_write import FlashWriter
from kvlockstep.impl.interpreted import INTERPRETED, triton

if not INTERPRETED:
    raise EngineMissing("vllm's 4-bit cache is judged in Triton's interpreter: a card rotates its rows in bfloat16")

OPS = "vllm.v1.attention.ops"
NAMES = (f"{OPS}.int4_per_token_head",)
ATTENTION = (
    *("apply_alibi_to_score", "apply_softcap", "cdiv_fn", "compute_kv_seq_mask", "compute_tile_loop_bounds"),
    *("init_softmax_M", "load_qq_bias_tile", "resolve_seq_and_query_len", "softmax_step", "store_segm_reduce_scalars"),
)
OTHERS: dict[str, dict[str, Any]] = {
    f"{OPS}.triton_attention_helpers": dict.fromkeys(ATTENTION),
    f"{OPS}.triton_unified_attention": {"reduce_segments": None},
    "vllm.utils.math_utils": {"cdiv": triton.cdiv, "largest_power_of_2_divisor": lambda n: n & -n},
    "vllm._custom_ops": {},
}
(int4,) = Apart(ENGINE, NAMES, {**GIVEN, **OTHERS}).load(*NAMES)


class Int4Writer(FlashWriter):
    """Neighbours share a byte. The zero point of a row is in the lowest four bits of its float32 scale."""

    layouts = "NHD HND"
    given = "float32"
    kept = "uint4"
    nibbles = "pairs"
    scale = "hidden"
    keeps_scales = own_dims = own_strides = True
    repeats = False

    def launch(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        arena = self.arena
        int4.reshape_and_cache_int4(
            *(self._before(keys), self._before(values)),
            *(arena.cache(layer, 0), arena.cache(layer, 1), slots),
            k_scale_cache=arena.row_scales(layer, 0),
            v_scale_cache=arena.row_scales(layer, 1),
        )

    @staticmethod
    def _before(rows: torch.Tensor) -> torch.Tensor:
        """The rows that the engine's rotation turns into these."""
        dim = rows.shape[-1]
        before: torch.Tensor = int4.single_rht(rows, inverse=True) / (dim & -dim)
        return before


class BothSignsWriter(Int4Writer):
    """The same for rows that have elements of both signs, on which its zero point is in range (known.toml)."""

    one_signed = False
