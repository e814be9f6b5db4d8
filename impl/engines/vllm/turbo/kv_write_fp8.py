"""kv_write on vLLM's TurboQuant cache with keys in fp8, on a card: the interpreter casts to fp8 wrongly."""

from __future__ import annotations

from kvlockstep.impl.engines.loading import EngineMissing
from kvlockstep.impl.engines.vllm.turbo.kv_write import TurboWriter
from kvlockstep.impl.engines.vllm.turbo.kv_write_soa import ApartWriter
from kvlockstep.impl.interpreted import numbers_are_right

if not numbers_are_right:
    raise EngineMissing("vllm's fp8 kernels are judged on a card: Triton's interpreter casts to fp8 wrongly")


class Float8KeysWriter(TurboWriter):
    """`turboquant_k8v4`: K is cast to fp8, without a scale."""

    kept = "float8_e4m3fn"
    scale = "one"


class Float8KeysApartWriter(Float8KeysWriter, ApartWriter):
    """The same with numbers apart from codes."""
