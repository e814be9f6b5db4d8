"""A cache whose few blocks lie far apart in a big one: what a kernel does where offsets need more than 32 bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from kvlockstep.impl.kv_write.arena import Arena, bytes_of, tensor_of
from kvlockstep.reference.kv_write.geometry import Geometry
from kvlockstep.reference.kv_write.layout import Plane, layout_of

POISON = 0xA5
CHUNK = 1 << 28


class FarArena(Arena):
    """An arena in which each plane has at least `least_elements` elements on the device.

    The judge's blocks are a few of them, the last one at the far end. Layers lie behind one another, so that an offset
    that wraps around in a later layer lands in an earlier one. The judge sees its own blocks as one small buffer, whose
    last guard stands for all the rest of the big one: it changes if any byte there does.
    """

    def __init__(
        self, geometry: Geometry, memory: bytes, scales: bytes, device: str | torch.device, least_elements: int
    ) -> None:
        self._near = layout_of(geometry)
        self._shared = geometry.layout in ("joint", "paired")
        self._near_bytes = tensor_of(memory, "uint8", device)
        stride = self._near.planes[0][0].block
        self._total = max(geometry.blocks + 1, -(-least_elements // stride))
        super().__init__(geometry._replace(blocks=self._total), b"", scales, device)
        self._few, self._far = geometry.blocks, layout_of(self.geometry)
        self._planes = self._far.planes
        width = torch.empty(0, dtype=self.flat.dtype).element_size()
        self._width = width
        raw = torch.full((self._far.places * width,), POISON, dtype=torch.uint8, device=device)
        self.flat = raw.view(self.flat.dtype)
        self._raw = raw
        for near, far in self._windows():
            raw[far] = self._near_bytes[near]

    def memory(self) -> bytes:
        """The judge's blocks with the guards between them. The last one shows whether anything else has changed."""
        found = self._near_bytes.clone()
        starts = range(0, len(self._raw), CHUNK)
        changed = sum(int((self._raw[start : start + CHUNK] != POISON).sum().item()) for start in starts)
        for near, far in self._windows():
            found[near] = self._raw[far]
            changed -= int((self._raw[far] != POISON).sum())
        if changed:
            found[-1] ^= 0xFF
        return bytes_of(found)

    def slots(self, slots: Sequence[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """The far slots of the judge's slots; padding stays as it is."""
        size = self.geometry.block_size
        far = [slot if slot < 0 else self._block(slot // size) * size + slot % size for slot in slots]
        return super().slots(far, dtype)

    def _block(self, block: int) -> int:
        return (block + 1) * (self._total - 1) // self._few

    def _windows(self) -> Iterator[tuple[slice, slice]]:
        """The bytes of each of the judge's blocks in the small buffer and in the big one."""
        pairs: list[tuple[Plane, Plane]] = []
        for near, far in zip(self._near.planes, self._far.planes, strict=True):
            pairs += [(near[0], far[0])] if self._shared else list(zip(near, far, strict=True))
        for small, big in pairs:
            for block in range(self._few):
                start, there = small.base + block * small.block, big.base + self._block(block) * big.block
                yield self._bytes(start, small.block), self._bytes(there, big.block)

    def _bytes(self, start: int, count: int) -> slice:
        return slice(start * self._width, (start + count) * self._width)


def arena_for(
    geometry: Geometry, memory: bytes, scales: bytes, device: str | torch.device, least_elements: int = 0
) -> Arena:
    """An arena for an adapter: a far one if it is to have so many elements."""
    if least_elements:
        return FarArena(geometry, memory, scales, device, least_elements)
    return Arena(geometry, memory, scales, device)
