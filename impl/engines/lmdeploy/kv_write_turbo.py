"""kv_write on LMDeploy's TurboQuant cache (0.16.0, `--quant-policy 42`), through `fill_kv_cache`.

K is kept as codes of three bits with a fourth for the side of the step, beside its length and the mean of what is left
over, and V as codes of two bits beside its length. The engine rotates rows by a Hadamard matrix and has tables of
Lloyd and Max for its codes. Here nothing is rotated, and codes are equal steps from -1 to 1, so that a reader's number
is plain to see: both go where the engine itself looks, in place of a package for the rotation and in its cache of
tables. Source: lmdeploy/pytorch/kernels/cuda/{fill_kv_cache, turbo_quant}.py.
"""

from __future__ import annotations

from typing import Any

import torch

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.lmdeploy.kv_write import ENGINE, GIVEN, NAMES, FillWriter, QuantPolicy
from kvlockstep.impl.interpreted import DEVICE, numbers_are_right
from kvlockstep.reference.kv_write.geometry import Geometry
from kvlockstep.reference.kv_write.numbers import MOST
from kvlockstep.reference.kv_write.split import steps_to_one

TURBO = "lmdeploy.pytorch.kernels.cuda.turbo_quant"
# A copy of its own, so that other targets keep the tables of the engine.
filling, turbo = Apart(ENGINE, NAMES, GIVEN).load(*NAMES, TURBO)


def _as_it_is(rows: torch.Tensor, scale: float) -> torch.Tensor:
    return rows


turbo._USE_FAST_HADAMARD, turbo._fast_hadamard_transform = True, _as_it_is


class TurboWriter(FillWriter):
    """Scales are kept in the model's dtype."""

    given = "float16 bfloat16" if numbers_are_right else "float16"
    kept = "uint4"
    scale = "residual"
    value_kept = "uint2"
    value_scale = "norm"
    scale_dtype = "given"
    layouts = "NHD"
    keeps_scales = True
    least_dim = 4
    policy = QuantPolicy.TURBO_QUANT
    filling: Any = filling

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        super().open(geometry, memory, scales)
        for plane, bits in enumerate((3, 2)):
            steps, where = f"uint{bits}", torch.empty(0, device=DEVICE).device
            centres = (torch.arange(1 << bits, device=where) - MOST[steps] / 2) / steps_to_one(steps)
            table = centres, (centres[1:] + centres[:-1]) / 2
            turbo._TURBOQUANT_CACHE[geometry.dim(plane), bits, str(where), "codebook"] = table

    def _scales(self, layer: int) -> tuple[torch.Tensor, ...]:
        return self.arena.row_scales(layer, 0), self.arena.row_scales(layer, 1).unsqueeze(-1)
