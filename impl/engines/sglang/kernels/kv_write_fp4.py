"""kv_write on SGLang's fp4 cache (0.5.23, `fp4_mx_block16`): 16 elements share a scale, a power of two.

It is torch code, which the engine compiles. Compiled code keeps what lies between in float32, whatever dtype rows have;
here it is not compiled, so it gets rows in float32. A head of the judge is a tile of 16 elements; tiles are the heads
of a token and parts of one head in turn. Source: sglang/srt/layers/quantization/{fp4_kv_cache_quant_method,
kvfp4_tensor}.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.row_bytes import RowBytesWriter
from kvlockstep.impl.engines.sglang.get import GET
from kvlockstep.reference.kv_write.contract import Rows
from kvlockstep.reference.kv_write.geometry import Geometry

ENGINE = find("sglang", "srt/layers/quantization/fp4_kv_cache_quant_method.py", GET)
NAMES = ("sglang.srt.layers.quantization.fp4_kv_cache_quant_method",)
GIVEN: dict[str, dict[str, Any]] = {"sglang.srt.runtime_context": {"get_platform": None}}
APART = Apart(ENGINE, NAMES, GIVEN)
(methods,) = APART.load(*NAMES)


class Float4Writer(RowBytesWriter):
    """Pools [slot, head, byte] of K and V, and their scales [slot, tile], in one row of bytes for each slot."""

    engine = "sglang"
    version = ENGINE.version
    kept = "float4_e2m1fn"
    nibbles = "pairs"
    scale = "row"
    scale_dtype = "float8_e8m0fnu"
    power_scales = "above"
    keeps_scales = own_strides = True
    pads = False
    least_dim = 16  # no scope has more, so that each head is one tile

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        super().open(geometry, memory, scales)
        self._method = methods.FP4MXBlock16KVCacheMethod()
        self._calls = 0

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        if not slots:
            return
        self._calls += 1
        heads = self.arena.geometry.heads if self._calls % 2 else 1
        pool = self._rows.rows(layer)[:, 0]
        k_codes, k_scales, v_codes, v_scales = (pool[:, part] for part in self._rows.parts)
        k_codes, v_codes = (codes.view(len(pool), heads, -1) for codes in (k_codes, v_codes))
        given = (self.arena.rows(rows, plane) for plane, rows in enumerate((keys, values)))
        with APART.inside(), torch.compiler.set_stance("force_eager"):
            self._method.quantize_and_store(
                *(k_codes, v_codes, k_scales, v_scales),
                self.arena.slots(slots),
                *(rows.float().view(len(slots), heads, -1) for rows in given),
            )
