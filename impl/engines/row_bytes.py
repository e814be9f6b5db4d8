"""A cache that keeps all of a token in one row of bytes: codes of its K, their scales, and its V as it is given.

The judge has the same bytes in another order: planes of K and of V in one buffer and scales in another. Each byte of
the judge's is one of this cache, so that every law sees all of it. Where rows have a gap, and in front of, between and
behind the layers, lie the judge's gaps and guards.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kvlockstep.impl.kv_write.arena import bytes_of, tensor_of
from kvlockstep.reference.kv_write.layout import Geometry, layout_of
from kvlockstep.reference.kv_write.numbers import ELEMENT_BYTES

APART = 16  # bytes in front of a layer; rows of whole words keep every part of them aligned
WORD = 4


class RowBytes:
    """The cache of a geometry with raw values. `parts` are the bytes of codes, of scales and of V in a row."""

    def __init__(self, geometry: Geometry, memory: bytes, scales: bytes, device: str) -> None:
        self._geometry, self._size = geometry, len(memory)
        width = ELEMENT_BYTES[geometry.given]
        scale = ELEMENT_BYTES[geometry.scale_dtype]
        ends = [geometry.heads * n for n in (geometry.key_dim, geometry.key_dim + scale)]
        ends.append(ends[1] + geometry.heads * geometry.value_dim * width)
        self.parts = slice(0, ends[0]), slice(ends[0], ends[1]), slice(ends[1], ends[2])
        self._row = ends[2] + (geometry.key_gap + geometry.value_gap * width) // WORD * WORD
        order = torch.tensor(self._order(len(memory) + len(scales)), device=device)
        self._back = torch.argsort(order)
        self._bytes = tensor_of(memory + scales, "uint8", device)[order]

    def tokens(self, layer: int) -> torch.Tensor:
        """The rows of a layer: [slot, byte], uint8."""
        start, slots = APART + layer * (self._geometry.slots * self._row + APART), self._geometry.slots
        return self._bytes[start : start + slots * self._row].view(slots, self._row)

    def memory(self) -> bytes:
        """The judge's flat buffer."""
        return self._judged()[: self._size]

    def scales(self) -> bytes:
        """The judge's buffer of scales."""
        return self._judged()[self._size :]

    def _judged(self) -> bytes:
        return bytes_of(self._bytes[self._back])

    def _order(self, total: int) -> list[int]:
        """For each byte of this cache, which one of the judge's it is: of the flat buffer, then of the scales."""
        geometry = self._geometry
        layers = [
            [list(self._of(layer, slot)) for slot in range(geometry.slots)] for layer in range(geometry.layers)
        ]
        owned = {byte for rows in layers for row in rows for byte in row}
        free = iter([byte for byte in range(total) if byte not in owned])
        order: list[int] = []
        for rows in layers:
            order += [next(free) for _ in range(APART)]
            for row in rows:
                order += row
                order += [next(free) for _ in range(self._row - len(row))]
        return order + list(free)

    def _of(self, layer: int, slot: int) -> Iterator[int]:
        """The judge's bytes of a row."""
        geometry = self._geometry
        block, offset = divmod(slot, geometry.block_size)
        width, heads = ELEMENT_BYTES[geometry.scale_dtype], range(geometry.heads)
        keys, values = layout_of(geometry).planes[layer]
        yield from (keys.at(block, offset, head, i) for head in heads for i in range(geometry.stored(0)))
        for head in heads:
            start = self._size + geometry.scale_at(layer, 0, slot, head) * width
            yield from range(start, start + width)
        yield from (values.at(block, offset, head, i) for head in heads for i in range(geometry.stored(1)))
