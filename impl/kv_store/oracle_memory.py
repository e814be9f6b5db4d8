"""A kv_store behind the calls that a KV oracle makes: a 64-bit stamp per slot, in each plane another form of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvlockstep.impl.kv_store.store import KVStore
from kvlockstep.reference.kv.shape import KVShape

POISON = -1
TORN = -2
SHAPE = KVShape(2, 1, 4, "bfloat16")


class StoreMemory:
    """K and V of two layers in `blocks` blocks, and `host_blocks` on the host; a kv_manager offers one as its `memory`.

    A row has 64 bits: the stamp, with bits flipped that are different for every plane, so that a copy that misses a
    plane, or takes one for another, shows when the slot is read. A slot reads as 0 until it is written.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        layout: str = "layer_major",
        device: str = "cpu",
        host_blocks: int = 0,
        host_device: str = "cpu",
    ) -> None:
        self.store = KVStore(blocks, block_size, host_blocks, SHAPE, layout, device=device, host_device=host_device)
        self._flips = [0x5DEECE66D * (plane + 1) for plane in range(2 * SHAPE.layers)]
        self.write(range(blocks * block_size), [0] * (blocks * block_size))

    def write(self, slots: Sequence[int], stamps: Sequence[int]) -> None:
        """Stores stamps[i] in every plane of slots[i]; the last of equal slots wins."""
        if not slots:
            return
        last = dict(zip(slots, stamps, strict=True))
        where, what = self._numbers(list(last)), self._numbers(list(last.values())).view(-1, 1, 1)
        for layer in range(SHAPE.layers):
            k, v = (what ^ flip for flip in self._flips[2 * layer : 2 * layer + 2])
            self.store.store(layer, where, k.view(torch.bfloat16), v.view(torch.bfloat16))

    def read(self, slots: Sequence[int]) -> list[int]:
        """The stamps in these slots, TORN where the planes of a slot disagree."""
        if not slots:
            return []
        where = self._numbers(list(slots))
        rows = [row for layer in range(SHAPE.layers) for row in self.store.load(layer, where)]
        planes = [row.contiguous().view(torch.int64).flatten() ^ f for row, f in zip(rows, self._flips, strict=True)]
        whole = torch.stack([plane == planes[0] for plane in planes]).all(0)
        stamps: list[int] = torch.where(whole, planes[0], torch.full_like(planes[0], TORN)).tolist()
        return stamps

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, given slot by slot; all sources are read before any target is written."""
        size = self.store.block_size
        self.store.copy_blocks(list(dict.fromkeys((source // size, target // size) for source, target in pairs)))

    def poison(self, slots: Sequence[int]) -> None:
        """Marks freed slots: they read as POISON."""
        self.write(slots, [POISON] * len(slots))

    def _numbers(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.store.device)
