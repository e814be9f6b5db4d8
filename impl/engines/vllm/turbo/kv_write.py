"""kv_write on vLLM's TurboQuant caches (0.33.0), through `triton_turboquant_store`.

All of a head is in one row of bytes: its K, its V as codes of 4 bits or of 3, and the scale and the least element of V
in float16. K is cast to fp8, or it is divided by its length, rotated and kept as codes of 4 bits or of 3 beside that
length. The rotation and the borders between codes are tables that the caller gives. Here nothing is rotated, and codes
are equal steps from -1 to 1, so that a reader's number is plain to see. Source:
vllm/v1/attention/ops/triton_turboquant_store.py and model_executor/layers/quantization/turboquant/config.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.row_bytes import RowBytesWriter
from kvlockstep.impl.engines.vllm.kernels import ENGINE, GIVEN
from kvlockstep.impl.interpreted import DEVICE
from kvlockstep.reference.kv_write.contract import Rows
from kvlockstep.reference.kv_write.geometry import Geometry
from kvlockstep.reference.kv_write.numbers import CODE_BITS

OPS = "vllm.v1.attention.ops"
NAMES = (f"{OPS}.triton_turboquant_store",)
# The launcher asks for the fp8 of old cards, which is another one.
OTHERS: dict[str, dict[str, Any]] = {f"{OPS}.triton_turboquant_decode": {"_use_fp8_e4b15": lambda _device: 0}}
(storing,) = Apart(ENGINE, NAMES, {**GIVEN, **OTHERS}).load(*NAMES)


class TurboWriter(RowBytesWriter):
    """`turboquant_4bit_nc`: codes of 4 bits for K and for V."""

    engine = "vllm"
    version = ENGINE.version
    # What a scale in float16 can express.
    given = "float16"
    kept = "uint4"
    scale = "norm"
    value_kept = "uint4"
    value_scale = "low"
    scale_dtype = "float16"
    nibbles = "pairs"
    keeps_scales = True
    storing: Any = storing
    _by_head = True

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        super().open(geometry, memory, scales)
        bits = CODE_BITS.get(geometry.kept, 8)
        half = 1 << (bits - 1)
        self._borders = torch.arange(1 - half, half, dtype=torch.float32, device=DEVICE) / half
        self._rotation = torch.eye(geometry.key_dim, device=DEVICE)
        self._key_bits = bits

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        if not slots:
            return
        geometry, rows = self.arena.geometry, self._rows.rows(layer)
        self.storing.triton_turboquant_store(
            *(self.arena.rows(keys, 0), self.arena.rows(values, 1)),
            rows.view(-1, geometry.block_size, *rows.shape[1:]),
            *(self.arena.slots(slots, torch.int32), self._rotation, self._borders),
            mse_bits=self._key_bits,
            key_packed_size=self._rows.parts[2].start,
            value_quant_bits=CODE_BITS[geometry.kept_of(1)],
            key_fp8=geometry.scale == "one",
        )


class ThreeBitWriter(TurboWriter):
    """`turboquant_3bit_nc`: codes of 3 bits for both."""

    kept = value_kept = "uint3"


class MixedWriter(TurboWriter):
    """`turboquant_k3v4_nc`: codes of 3 bits for K and of 4 for V."""

    kept = "uint3"
