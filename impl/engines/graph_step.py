"""What the adapters of captured steps share: our decode graphs where Triton runs, and a second plane of stamps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvlockstep.impl.decode_graphs.graphs import DecodeGraphs
from kvlockstep.impl.interpreted import DEVICE, INTERPRETED

TORN = -2


class EngineStep(DecodeGraphs):
    """Blocks, tables and reads are ours, and so is the memory: a slot has 8 bytes."""

    interpreted = INTERPRETED

    def __init__(self, rows: int, width: int, blocks: int, block_size: int) -> None:
        super().__init__(rows, width, blocks, block_size, DEVICE)


class TwoPlaneStep(EngineStep):
    """A stamp is written as K and as V. `memory` says TORN where the two differ."""

    def __init__(self, rows: int, width: int, blocks: int, block_size: int) -> None:
        super().__init__(rows, width, blocks, block_size)
        self.values = torch.zeros_like(self._memory.slots)

    def admit(self, row: int, stamps: Sequence[int]) -> None:
        super().admit(row, stamps)
        self.values.copy_(self._memory.slots)

    def memory(self) -> list[int]:
        keys, values = self._memory.slots[:-1], self.values[:-1]
        stamps: list[int] = torch.where(keys == values, keys, torch.full_like(keys, TORN)).tolist()
        return stamps
