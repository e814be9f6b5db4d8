"""kv_write on vLLM's Triton kernels that write KV, through their own launchers.

`triton_reshape_and_cache_flash` takes rows [token, head, dim] with any token stride, and caches of any strides that K
and V share; negative slots are padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvlockstep.impl.engines.arena_writer import ArenaWriter
from kvlockstep.impl.engines.vllm.kernels import ENGINE, KVQuantMode, writes
from kvlockstep.impl.interpreted import DEVICE, numbers_are_right
from kvlockstep.reference.kv_write.contract import Rows
from kvlockstep.reference.kv_write.geometry import Geometry

# Free elements behind each given token: the kernels get K and V as views of a projection's output.
TAIL = 3
# On a card the engine itself uses this kernel for these. The interpreter divides and casts bfloat16 wrongly.
NUMBERS = "float32 float16 bfloat16" if numbers_are_right else "float32 float16"


class FlashWriter(ArenaWriter):
    """reshape_and_cache on blocks [block, offset, head, dim], or with heads before offsets, or K packed by elements."""

    engine = "vllm"
    version = ENGINE.version
    layouts = "NHD HND packed"
    repeats = True

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        super().open(geometry, memory, scales)
        self._calls = 0

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        if not slots:
            return  # the engine launches nothing for an empty batch
        self._calls += 1
        # The runner gives int64, and some backends int32.
        where = self.arena.slots(slots, torch.int32 if self._calls % 2 else torch.int64)
        self.launch(layer, where, self.arena.rows(keys, 0, TAIL), self.arena.rows(values, 1, TAIL))

    def launch(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        one = torch.ones(1, dtype=torch.float32, device=DEVICE)
        caches = self.arena.cache(layer, 0), self.arena.cache(layer, 1)
        writes.triton_reshape_and_cache_flash(keys, values, *caches, slots, "auto", one, one)


class JointWriter(FlashWriter):
    """K and V of two head dims, side by side in one cache."""

    layouts = "joint"
    own_dims = True

    def launch(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        one = torch.ones(1, dtype=torch.float32, device=DEVICE)
        writes.triton_reshape_and_cache_flash_diffkv(keys, values, self.arena.joint(layer), slots, "auto", one, one)


class RowScaleWriter(FlashWriter):
    """int8 or fp8 with a float32 scale for each token and head."""

    layouts = "NHD HND"
    given = NUMBERS
    kept = "int8 float8_e4m3fn" if numbers_are_right else "int8"
    scale = "row"
    keeps_scales = own_dims = own_strides = True
    repeats = False

    def launch(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        modes: dict[str, Any] = {
            "int8": KVQuantMode.INT8_PER_TOKEN_HEAD,
            "float8_e4m3fn": KVQuantMode.FP8_PER_TOKEN_HEAD,
        }
        arena = self.arena
        caches = arena.cache(layer, 0), arena.cache(layer, 1)
        scales = arena.row_scales(layer, 0), arena.row_scales(layer, 1)
        mode = modes[arena.geometry.kept]
        writes.triton_reshape_and_cache_flash_per_token_head_quant(keys, values, *caches, *scales, slots, mode)
