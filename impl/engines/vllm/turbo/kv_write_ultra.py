"""kv_write on vLLM's UltraQuant cache (0.33.0), through `ultraquant_store`: floats of four bits in groups of 32.

A group has the exponent of its scale in one byte: the power of two nearest to 0.156 times its largest element. All of a
head is in one row of bytes: K, its scales, V and its scales. A head of the judge is a group. K is rotated by a Hadamard
matrix over a whole head before it is quantised, in float32 within the kernel. So the judge's rows are what the rotation
gives, and the engine gets rows that it makes them of, in float32: the launcher takes half precision alone, which it is
told here to widen. Source: vllm/v1/attention/ops/ultraquant/{format, triton_store}.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvlockstep.impl.engines.arena_writer import ArenaWriter
from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.row_bytes import RowBytes, RowBytesWriter
from kvlockstep.impl.engines.vllm.get import GET
from kvlockstep.impl.interpreted import DEVICE, tl, triton
from kvlockstep.reference.kv_write.contract import Rows
from kvlockstep.reference.kv_write.geometry import Geometry

NAME = "vllm.v1.attention.ops.ultraquant.triton_store"
ENGINE = find("vllm", "v1/attention/ops/ultraquant/triton_store.py", GET)
GIVEN: dict[str, dict[str, Any]] = {"vllm.triton_utils": {"tl": tl, "triton": triton}}
(storing,) = Apart(ENGINE, [NAME], GIVEN).load(NAME)
storing._SUPPORTED_DTYPES = {torch.float32}


class UltraWriter(RowBytesWriter):
    """Groups are parts of one head where they can be: a rotation takes a power of two. Else each is a head."""

    engine = "vllm"
    version = ENGINE.version
    given = "float32"
    kept = "float4_e2m1fn"
    nibbles = "pairs"
    scale = "row"
    scale_dtype = "float8_e8m0fnu"
    power_scales = "nearest"
    keeps_scales = True
    least_dim = 32  # no scope has more

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        ArenaWriter.open(self, geometry, memory, scales)
        self._heads = 1 if geometry.heads & (geometry.heads - 1) == 0 else geometry.heads
        self._rows = RowBytes(geometry, memory, scales, DEVICE, by_head=self._heads > 1)

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        if not slots:
            return
        rows = self._rows.rows(layer)
        k, v = (
            self.arena.rows(part, plane).view(len(slots), self._heads, -1) for plane, part in enumerate((keys, values))
        )
        cache = rows.view(-1, self.arena.geometry.block_size, *rows.shape[1:])
        storing.ultraquant_store(self._before(k), v, cache, self.arena.slots(slots))

    @staticmethod
    def _before(rows: torch.Tensor) -> torch.Tensor:
        """The rows that the engine's rotation turns into these."""
        rotation = storing._get_hadamard(rows.shape[-1], rows.device, torch.float64)
        before: torch.Tensor = (rows.double() @ rotation).float()
        return before
