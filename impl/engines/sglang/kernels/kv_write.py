"""kv_write on SGLang's Triton kernels that write KV (0.5.23), through their own launchers.

Source: sglang/kernels/ops/kvcache/{cache_ops, mla_buffer}.py. On Hopper the engine launches the second one with
programmatic dependent launch, and so do we; where rows suit it there is a CUDA kernel instead, which is not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from kvlockstep.impl.engines.arena_writer import ArenaWriter
from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.sglang.get import GET
from kvlockstep.impl.interpreted import DEVICE, INTERPRETED
from kvlockstep.reference.kv_write.contract import PAD_SLOT, Rows
from kvlockstep.reference.kv_write.geometry import Geometry

ENGINE = find("sglang", "kernels/ops/kvcache/mla_buffer.py", GET)
NAMES = ("sglang.kernels.ops.kvcache.cache_ops", "sglang.kernels.ops.kvcache.mla_buffer")
GIVEN: dict[str, dict[str, Any]] = {
    "sglang.kernels.jit.utils": {"is_arch_support_pdl": lambda: not INTERPRETED},
    "sglang.kernels.ops.kvcache.set_mla_kv_buffer": {
        "can_use_set_mla_kv_buffer": lambda _nope, _rope: False,
        "set_mla_kv_buffer": None,
    },
    "sglang.srt.platforms": {
        "current_platform": SimpleNamespace(capabilities=SimpleNamespace(supports_triton=True)),
    },
    "sglang.srt.runtime_context": {"get_parallel": None},
}
APART = Apart(ENGINE, NAMES, GIVEN)
flash, latent = APART.load(*NAMES)


class FlashWriter(ArenaWriter):
    """reshape_and_cache_flash on blocks [block, offset, head, dim] of any strides; negative slots are padding."""

    engine = "sglang"
    version = ENGINE.version
    layouts = "NHD HND"
    own_strides = repeats = True

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        if slots:
            rows = self.arena.rows(keys, 0), self.arena.rows(values, 1)
            caches = self.arena.cache(layer, 0), self.arena.cache(layer, 1)
            flash.launch_reshape_and_cache_flash(*rows, *caches, *self.where(slots))

    def where(self, slots: Sequence[int]) -> tuple[torch.Tensor, ...]:
        return (self.arena.slots(slots),)


class WindowWriter(FlashWriter):
    """The same through a second table, as layers with sliding windows have it, from slots of all tokens to theirs.

    That table alone says where nothing is written. A slot of -1 would read in front of it; the engine gives none.
    """

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        super().open(geometry, memory, scales)
        # Slots of all tokens in the reverse order, the first one for a token that no window holds.
        self._table = torch.arange(self.arena.geometry.slots - 1, PAD_SLOT - 1, -1, dtype=torch.int64, device=DEVICE)
        self._table = self._table.roll(1)

    def where(self, slots: Sequence[int]) -> tuple[torch.Tensor, ...]:
        own = self.arena.slots(slots)
        return torch.where(own == PAD_SLOT, 0, self.arena.geometry.slots - own), self._table


class LatentWriter(ArenaWriter):
    """set_mla_kv_buffer: a latent and its rotated part in one row of a slot.

    The engine lets slot 0 be padding; which slot that is, is an argument, and here it is -1.
    """

    engine = "sglang"
    version = ENGINE.version
    layouts = "joint"
    own_dims = latent = repeats = True

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        if slots:
            rows = self.arena.rows(keys, 0), self.arena.rows(values, 1)
            cache = self.arena.joint(layer)[:, 0]
            with APART.inside():  # the launcher imports what it asks for a CUDA kernel
                latent.set_mla_kv_buffer_triton(cache, self.arena.slots(slots), *rows, reserved_skip_index=PAD_SLOT)
