"""What the adapters of kernels that copy KV share: a store of ours between guards, whose copies are an engine's."""

from __future__ import annotations

from abc import abstractmethod

import torch

from kvlockstep.impl.interpreted import DEVICE, INTERPRETED
from kvlockstep.impl.kv_store.store import KVStore
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv_store.contract import PAD_SLOT, Pairs

GUARD_BYTES = 64
POISON = 0xA5


class GuardedStore(KVStore):
    """A KVStore whose writes, reads and swaps are ours.

    In memory the planes [block, word] lie behind one another with a guard before, between and behind them. With
    `page_major` the blocks do, each with all its planes, and the guards are before and behind all.
    """

    interpreted = INTERPRETED
    guarded = True
    page_major = False

    def __init__(self, blocks: int, block_size: int, host_blocks: int, shape: KVShape, layout: str) -> None:
        super().__init__(blocks, block_size, host_blocks, shape, layout, device=DEVICE, kernels=False)

    def store(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """As KVStore.store, in memory with any strides."""
        real = slots != PAD_SLOT
        where = slots[real] // self.block_size, slots[real] % self.block_size
        for plane, rows in enumerate((keys, values)):
            self._layer(self._bits, layer, plane)[where] = rows[real].view(self._word)

    def strays(self) -> int:
        """Returns how many bytes of the guards have changed."""
        # One number comes from the device, however many guards there are.
        guards = torch.cat([self._raw[start:end] for start, end in self._guards])
        return int((guards != POISON).sum())

    def _sides(self, pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
        """Sources and targets, each a dense tensor: kernels take no stride of theirs."""
        sources, targets = zip(*pairs, strict=True)
        return self._index(sources), self._index(targets)

    def _room(self, planes: int, blocks: int, width: int) -> torch.Tensor:
        size = self.shape.item_bytes
        runs, length = (1, planes * blocks * width) if self.page_major else (planes, blocks * width)
        pitch = -(-length * size // GUARD_BYTES) * GUARD_BYTES + GUARD_BYTES
        self._raw = torch.full((GUARD_BYTES + runs * pitch,), POISON, dtype=torch.uint8, device=self.device)
        ends = [GUARD_BYTES + run * pitch + length * size for run in range(runs)]
        self._guards = [(0, GUARD_BYTES), *((end, GUARD_BYTES + pitch * (run + 1)) for run, end in enumerate(ends))]
        strides = (width, planes * width, 1) if self.page_major else (pitch // size, width, 1)
        room = self._raw.view(self._word).as_strided((planes, blocks, width), strides, GUARD_BYTES // size)
        room.zero_()
        return room


class RowCopies(GuardedStore):
    """A store whose copies on the device go through `launch`, slot by slot."""

    copies = "copy_blocks copy_prefix"
    copies_rows = True

    @abstractmethod
    def launch(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copies slots (int64) in all planes."""

    def copy_rows(self, pairs: Pairs) -> None:
        slots = self._blocks * self.block_size
        self._check_pairs("copy_rows", pairs, slots, slots)
        if pairs:
            self.launch(*self._sides(pairs))

    def rows(self) -> list[torch.Tensor]:
        """The planes as [slot, 1, word]: all that a token keeps in one of them."""
        return [plane.view(-1, 1, self._token) for plane in self._planes]

    def _move(self, pairs: list[tuple[int, int]], tail: int) -> None:
        size = self.block_size
        slots = [(s * size + i, t * size + i) for s, t in pairs for i in range(size)]
        self.copy_rows(slots[: len(slots) - (size - tail if tail else 0)])


class BlockCopies(GuardedStore):
    """A store whose copies of whole blocks go through `launch`."""

    copies = "copy_blocks"

    @abstractmethod
    def launch(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copies blocks (int64) in all planes."""

    def _move(self, pairs: list[tuple[int, int]], tail: int) -> None:
        if pairs:
            self.launch(*self._sides(pairs))
