"""kv_write on LightLLM's `destindex_copy_kv` (1.0.1), as bits and as int8, through its own launchers.

The engine keeps the heads of K and of V of a slot together: [slot, 2 x heads, dim]. It has no padding but a spare slot.
Head dims are powers of two, but for the kernel of Phi-3. Source: lightllm/common/basemodel/triton_kernel/
destindex_copy_kv.py, models/{phi3, deepseek2}/triton_kernel/destindex_copy_kv.py and common/mem_manager.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvlockstep.impl.engines.arena_writer import ArenaWriter
from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.lightllm.get import GET
from kvlockstep.impl.engines.loading import find
from kvlockstep.reference.kv_write.contract import Rows

ENGINE = find("lightllm", "common/basemodel/triton_kernel/destindex_copy_kv.py", GET)
NAMES = (
    "lightllm.common.basemodel.triton_kernel.destindex_copy_kv",
    "lightllm.models.phi3.triton_kernel.destindex_copy_kv",
    "lightllm.models.deepseek2.triton_kernel.destindex_copy_kv",
)
common, phi3, deepseek = Apart(ENGINE, NAMES, {}).load(*NAMES)


class CopyWriter(ArenaWriter):
    """The kernel that most models use."""

    engine = "lightllm"
    version = ENGINE.version
    layouts = "paired"
    repeats = power_of_two = True
    pads = False
    kernels = common

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        if slots:
            where = self.arena.slots(slots, torch.int32)
            rows = torch.cat([self.arena.rows(keys, 0), self.arena.rows(values, 1)], dim=1)
            self.launch(layer, where, rows)

    def launch(self, layer: int, slots: torch.Tensor, rows: torch.Tensor) -> None:
        self.kernels.destindex_copy_kv(rows, slots, self.arena.paired(layer))


class Phi3Writer(CopyWriter):
    """The kernel for Phi-3, whose head dim is 96."""

    power_of_two = False
    kernels = phi3


class LatentWriter(CopyWriter):
    """The kernel for DeepSeek: a latent and its rotated part, both kept in one row of a slot."""

    layouts = "joint"
    own_dims = latent = True

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        if slots:
            where = self.arena.slots(slots, torch.int32)
            row = self.arena.joint(layer)[:, 0]
            split = self.arena.geometry.key_dim
            rows = self.arena.rows(keys, 0), self.arena.rows(values, 1)
            deepseek.destindex_copy_kv(*rows, where, row[..., :split], row[..., split:])


class Int8Writer(CopyWriter):
    """`--mode int8kv`: codes are cut off towards 0, scales are kept in the model's dtype."""

    given = "float16"
    kept = "int8"
    scale = "row"
    scale_dtype = "float16"
    quotient = "given"
    rounding = "down"
    keeps_scales = True
    repeats = False

    def launch(self, layer: int, slots: torch.Tensor, rows: torch.Tensor) -> None:
        heads, cache = self.arena.geometry.heads, self.arena.paired(layer)
        for plane in (0, 1):
            part = slice(plane * heads, (plane + 1) * heads)
            scales = self.arena.row_scales(layer, plane).flatten(0, 1).unsqueeze(2)
            self.kernels.destindex_copy_quantize_kv(rows[:, part], slots, cache[:, part], scales)


class VariedInt8Writer(Int8Writer):
    """The same for rows that are not tiny, whose codes wrap around (known.toml)."""

    narrow_rows = False


class Phi3Int8Writer(Int8Writer):
    """The same for Phi-3."""

    power_of_two = False
    kernels = phi3
