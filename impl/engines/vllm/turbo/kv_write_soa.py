"""kv_write on vLLM's TurboQuant caches as its decode with FlyDSL reads them (0.33.0), through the store of that layout.

A block has the codes of all its tokens and heads, and behind them of each head the lengths of K, the scales of V and
its least elements. The engine's presets also divide the length by that of the codes; here it is kept as it is, which
changes one number and no place. Source: vllm/v1/attention/ops/turboquant_soa/triton_turboquant_store.py.
"""

from __future__ import annotations

from typing import Any

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.row_bytes import BlockBytes
from kvlockstep.impl.engines.vllm.kernels import ENGINE, GIVEN
from kvlockstep.impl.engines.vllm.turbo.kv_write import TurboWriter

SOA = "vllm.v1.attention.ops.turboquant_soa"
NAMES = (f"{SOA}.triton_turboquant_store",)
OTHERS: dict[str, dict[str, Any]] = {f"{SOA}.triton_turboquant_decode": {"_use_fp8_e4b15": lambda _device: 0}}
(apart,) = Apart(ENGINE, NAMES, {**GIVEN, **OTHERS}).load(*NAMES)


class ApartWriter(TurboWriter):
    """`turboquant_4bit_nc`, with numbers apart from codes."""

    storing: Any = apart
    least_dim = 16  # the codes of a head take an even number of bytes
    _bytes = BlockBytes


class MixedApartWriter(ApartWriter):
    """`turboquant_k3v4_nc`: codes of 3 bits for K and of 4 for V."""

    kept = "uint3"
