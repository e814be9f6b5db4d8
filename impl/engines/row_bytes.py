"""A cache that keeps all of a token, or of a head of it, in one row of bytes: K, its scales, V and its scales.

The judge has the same bytes in another order: planes of K and of V in one buffer and scales in another. Each byte of
the judge's is one of this cache, so that every law sees all of it. Where rows have a gap, and in front of, between and
behind the layers, lie the judge's gaps and guards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

import torch

from kvlockstep.impl.engines.arena_writer import ArenaWriter
from kvlockstep.impl.interpreted import DEVICE
from kvlockstep.impl.kv_write.arena import bytes_of, tensor_of
from kvlockstep.reference.kv_write.geometry import SCALES, Geometry
from kvlockstep.reference.kv_write.layout import layout_of
from kvlockstep.reference.kv_write.numbers import ELEMENT_BYTES

APART = 16  # bytes in front of a layer
WORD = 4  # gaps are of whole words, so that rows of whole words stay aligned


class RowBytes:
    """The cache of a geometry whose places are bytes. `parts` are the bytes of K, of its scales, of V and of its scales
    in a row of `by_head` one head, or else of all of them.
    """

    def __init__(self, geometry: Geometry, memory: bytes, scales: bytes, device: str, by_head: bool = False) -> None:
        self._geometry, self._size = geometry, len(memory)
        self._heads = [range(h, h + 1) for h in range(geometry.heads)] if by_head else [range(geometry.heads)]
        self._scale_bytes = [SCALES[geometry.scale_of(p)] * ELEMENT_BYTES[geometry.scale_dtype] for p in (0, 1)]
        sizes = [n * len(self._heads[0]) for p in (0, 1) for n in (geometry.stored(p), self._scale_bytes[p])]
        ends = list(accumulate(sizes, initial=0))
        self.parts = [slice(*pair) for pair in pairwise(ends)]
        gap = 0 if by_head else geometry.key_gap + geometry.value_gap
        self._row = ends[-1] + gap // WORD * WORD
        order = torch.tensor(self._order(len(memory) + len(scales)), device=device)
        self._back = torch.argsort(order)
        self._bytes = tensor_of(memory + scales, "uint8", device)[order]

    def rows(self, layer: int) -> torch.Tensor:
        """The rows of a layer: [slot, head, byte], or [slot, 1, byte], uint8."""
        count = self._geometry.slots * len(self._heads)
        start = APART + layer * (count * self._row + APART)
        return self._bytes[start : start + count * self._row].view(-1, len(self._heads), self._row)

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
        layers = [self._layer(layer) for layer in range(self._geometry.layers)]
        owned = {byte for rows in layers for row in rows for byte in row}
        free = iter([byte for byte in range(total) if byte not in owned])
        order: list[int] = []
        for rows in layers:
            order += [next(free) for _ in range(APART)]
            for row in rows:
                order += row
                order += [next(free) for _ in range(self._row - len(row))]
        return order + list(free)

    def _layer(self, layer: int) -> list[list[int]]:
        """The judge's bytes of each row of a layer."""
        return [list(self._of(layer, slot, heads)) for slot in range(self._geometry.slots) for heads in self._heads]

    def _of(self, layer: int, slot: int, heads: Iterable[int]) -> Iterator[int]:
        """The judge's bytes of a row."""
        geometry = self._geometry
        block, offset = divmod(slot, geometry.block_size)
        width = ELEMENT_BYTES[geometry.scale_dtype]
        for plane, where in enumerate(layout_of(geometry).planes[layer]):
            yield from (where.at(block, offset, head, i) for head in heads for i in range(geometry.stored(plane)))
            for head in heads:
                start = self._size + geometry.scale_at(layer, plane, slot, head) * width
                yield from range(start, start + self._scale_bytes[plane])


class BlockBytes(RowBytes):
    """The same for a cache that keeps the numbers of a block's rows behind the codes of all of them: of each head one
    number of all tokens after the other. The codes of a head are K and V.
    """

    def __init__(self, geometry: Geometry, memory: bytes, scales: bytes, device: str, by_head: bool = True) -> None:
        super().__init__(geometry, memory, scales, device, by_head=True)

    def _layer(self, layer: int) -> list[list[int]]:
        geometry, rows = self._geometry, super()._layer(layer)
        each, width = geometry.block_size * geometry.heads, ELEMENT_BYTES[geometry.scale_dtype]
        found: list[int] = []
        for start in range(0, len(rows), each):
            block = [[row[part] for part in self.parts] for row in rows[start : start + each]]
            found += [byte for k, _, v, _ in block for byte in k + v]
            for head in range(geometry.heads):
                numbers = [k + v for _, k, _, v in block[head :: geometry.heads]]
                found += [
                    byte
                    for field in range(0, len(numbers[0]), width)
                    for row in numbers
                    for byte in row[field : field + width]
                ]
        return [found[i : i + self._row] for i in range(0, len(found), self._row)]


class RowBytesWriter(ArenaWriter):
    """An adapter whose cache is `_rows`; with `_by_head` each head of a token has a row of its own."""

    _by_head = False
    _bytes: type[RowBytes] = RowBytes

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        # Not the next class: it may make a cache in the judge's order, which this one is instead of.
        ArenaWriter.open(self, geometry, memory, scales)
        self._rows = self._bytes(geometry, memory, scales, DEVICE, self._by_head)

    def memory(self) -> bytes:
        return self._rows.memory()

    def scales(self) -> bytes:
        return self._rows.scales()
