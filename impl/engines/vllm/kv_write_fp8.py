"""kv_write on vLLM's fp8 cache with a scale for each tensor, on a card: the interpreter casts to fp8 wrongly."""

from __future__ import annotations

import torch

from kvlockstep.impl.engines.loading import EngineMissing
from kvlockstep.impl.engines.vllm.kernels import writes
from kvlockstep.impl.engines.vllm.kv_write import FlashWriter
from kvlockstep.impl.interpreted import numbers_are_right

if not numbers_are_right:
    raise EngineMissing("vllm's fp8 kernels are judged on a card: Triton's interpreter casts to fp8 wrongly")


class Float8Writer(FlashWriter):
    """The scales are the caller's. What a tensor's scale cannot express saturates."""

    layouts = "NHD HND"
    kept = "float8_e4m3fn"
    scale = "tensor"

    def launch(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        caches = self.arena.cache(layer, 0), self.arena.cache(layer, 1)
        scales = self.arena.tensor_scale(layer, 0), self.arena.tensor_scale(layer, 1)
        writes.triton_reshape_and_cache_flash(keys, values, *caches, slots, "fp8", *scales)
