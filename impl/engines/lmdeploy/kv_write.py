"""kv_write on LMDeploy's `fill_kv_cache` (0.16.0), through its own launcher.

The kernel takes block tables and lengths instead of slots. Here each run of neighbouring slots in a block is a request
with that block as its table: one token each as in a decode, or runs as in a prefill, in turn. The engine pads with a
request of one token in block 0, which is written, so there is no padding here. Source:
lmdeploy/pytorch/kernels/cuda/fill_kv_cache.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from kvlockstep.impl.engines.arena_writer import ArenaWriter
from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.lmdeploy.get import GET
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.interpreted import DEVICE
from kvlockstep.reference.kv_write.contract import Rows
from kvlockstep.reference.kv_write.geometry import Geometry

ENGINE = find("lmdeploy", "pytorch/kernels/cuda/fill_kv_cache.py", GET)


class QuantPolicy(IntEnum):
    """As in lmdeploy/messages.py."""

    NONE = 0
    INT4 = 4
    INT8 = 8
    FP8 = 16
    FP8_E5M2 = 17
    TURBO_QUANT = 42


NAMES = ("lmdeploy.pytorch.kernels.cuda.fill_kv_cache",)
GIVEN: dict[str, dict[str, Any]] = {"lmdeploy.messages": {"QuantPolicy": QuantPolicy}}
(filling,) = Apart(ENGINE, NAMES, GIVEN).load(*NAMES)


class Batch(NamedTuple):
    """The requests of a write, int64: where the new rows of each start, how many they are, how many tokens its block
    has with them, the longest of `lengths`, and a table of one block each.
    """

    starts: torch.Tensor
    lengths: torch.Tensor
    whole: torch.Tensor
    longest: int
    tables: torch.Tensor


class FillWriter(ArenaWriter):
    """Bits, into caches of either layout. K and V have strides and dims of their own; a block is a power of two."""

    engine = "lmdeploy"
    version = ENGINE.version
    layouts = "NHD HND"
    own_strides = own_dims = power_of_two = True
    pads = False
    policy = QuantPolicy.NONE
    filling: Any = filling

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        super().open(geometry, memory, scales)
        self._calls = 0

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        if not slots:
            return
        self._calls += 1
        arena = self.arena
        self.fill(layer, self._batch(slots), arena.rows(keys, 0), arena.rows(values, 1))

    def fill(self, layer: int, batch: Batch, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Writes the rows of a batch."""
        self.filling.fill_kv_cache(
            *(keys, values, *self._caches(layer)),
            *(batch.starts, batch.lengths, batch.whole, batch.longest, batch.tables),
            *self._scales(layer),
            quant_policy=self.policy,
            kv_layout=self._layout(),
        )

    def _layout(self) -> str:
        return "bshd" if self.arena.geometry.layout == "NHD" else "bhsd"

    def _batch(self, slots: Sequence[int]) -> Batch:
        size = self.arena.geometry.block_size
        runs = self._runs(slots) if self._calls % 2 else [(slot, 1) for slot in slots]
        lengths = [n for _, n in runs]
        return Batch(
            starts=self._numbers([sum(lengths[:i]) for i in range(len(lengths))]),
            lengths=self._numbers(lengths),
            whole=self._numbers([slot % size + n for slot, n in runs]),
            longest=max(lengths),
            tables=(self.arena.slots([slot for slot, _ in runs]) // size).unsqueeze(1),
        )

    def _caches(self, layer: int) -> list[torch.Tensor]:
        caches = [self.arena.cache(layer, plane) for plane in (0, 1)]
        return caches if self.arena.geometry.layout == "NHD" else [cache.transpose(1, 2) for cache in caches]

    def _scales(self, layer: int) -> tuple[torch.Tensor, ...]:
        return ()

    def _runs(self, slots: Sequence[int]) -> list[tuple[int, int]]:
        """The slots as (first, how many) runs of neighbours within a block."""
        runs: list[tuple[int, int]] = []
        for slot in slots:
            if runs and slot == sum(runs[-1]) and slot % self.arena.geometry.block_size:
                runs[-1] = runs[-1][0], runs[-1][1] + 1
            else:
                runs.append((slot, 1))
        return runs

    def _numbers(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=DEVICE)


class Int8Writer(FillWriter):
    """`--quant-policy 8`: codes of 8 bits. Each token and head has a scale and a zero point in the model's dtype."""

    given = "float16"
    kept = "uint8"
    scale = "zero"
    scale_dtype = "float16"
    quotient = "given"
    keeps_scales = True
    policy = QuantPolicy.INT8

    def _scales(self, layer: int) -> tuple[torch.Tensor, ...]:
        scales = [self.arena.row_scales(layer, plane) for plane in (0, 1)]
        if self.arena.geometry.layout == "HND":
            scales = [scale.transpose(1, 2) for scale in scales]
        return tuple(scales)


class VariedInt8Writer(Int8Writer):
    """The same for rows that are not all equal, on which it divides by 0 (known.toml)."""

    narrow_rows = False


class VariedInt4Writer(VariedInt8Writer):
    """`--quant-policy 4`: codes of 4 bits, one of each half of a head in a byte. Equal rows fail as with 8 bits."""

    kept = "uint4"
    policy = QuantPolicy.INT4
