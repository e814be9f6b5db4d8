"""Where each element of a cache lies: the layout of a geometry, and the places of elements in one flat buffer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from kvlockstep.reference.kv_write.geometry import GUARD, Geometry
from kvlockstep.reference.kv_write.numbers import ELEMENT_BYTES


class Plane(NamedTuple):
    """K or V of one layer. An element is at base + block x `block` + offset x `offset` + head x `head`
    + element // pack x `outer` + element % pack, in elements.
    """

    base: int
    block: int
    offset: int
    head: int
    outer: int
    pack: int

    def at(self, block: int, offset: int, head: int, element: int) -> int:
        """The place of an element in the flat buffer."""
        inside = element // self.pack * self.outer + element % self.pack
        return self.base + block * self.block + offset * self.offset + head * self.head + inside


class Layout(NamedTuple):
    """The planes of a geometry, `planes[layer][0]` for K and `[1]` for V, in a buffer of `places` elements."""

    planes: list[tuple[Plane, Plane]]
    places: int


@lru_cache(maxsize=64)
def layout_of(geometry: Geometry) -> Layout:
    """Lays a geometry out, one layer after the other. Raises InvalidArgument."""
    geometry.check()
    planes, base = [], GUARD
    for _ in range(geometry.layers):
        key = _plane(geometry, 0, base)
        if geometry.layout in ("joint", "paired"):
            # The V of a token, or of its head, lies behind the K.
            behind = geometry.stored(0) * (geometry.heads if geometry.layout == "paired" else 1)
            value = key._replace(base=base + behind)
            base += geometry.blocks * key.block + GUARD
        else:
            base += geometry.blocks * key.block + GUARD
            value = _plane(geometry, 1, base)
            base = value.base + geometry.blocks * value.block + GUARD
        planes.append((key, value))
    return Layout(planes, base)


def _plane(geometry: Geometry, plane: int, base: int) -> Plane:
    size, heads, dim = geometry.block_size, geometry.heads, geometry.stored(plane)
    gap = geometry.value_gap if plane else geometry.key_gap
    # Elements wider than a place have strides and a base that are multiples of their width.
    wide = ELEMENT_BYTES[geometry.kept_of(plane)] // geometry.width
    gap, base = gap * wide, -(-base // wide) * wide
    match geometry.layout:
        case "HND":  # block, head, offset, dim
            offset = dim + gap
            return Plane(base, heads * size * offset + gap, offset, size * offset, 1, 1)
        case "packed" if plane == 0:  # block, head, dim / pack, offset, pack
            pack = geometry.pack
            return Plane(base, heads * dim * size + gap, pack, dim * size, size * pack, pack)
        case "packed":  # block, head, dim, offset
            return Plane(base, heads * dim * size + gap, 1, dim * size, size, 1)
        case "joint":  # block, offset, head, K and V
            head = geometry.stored(0) + geometry.stored(1)
            return Plane(base, size * (heads * head + gap) + gap, heads * head + gap, head, 1, 1)
        case "paired":  # slot, the heads of K and those of V, dim
            return Plane(base, size * (2 * heads * dim + gap), 2 * heads * dim + gap, dim, 1, 1)
    offset = heads * dim + gap  # block, offset, head, dim
    return Plane(base, size * offset + gap, offset, dim, 1, 1)


def places_of(geometry: Geometry) -> Iterator[tuple[int, tuple[int, int, int, int, int]]]:
    """The place of each element in the flat buffer, with its (layer, plane, slot, head, element)."""
    for layer, planes in enumerate(layout_of(geometry).planes):
        for number, plane in enumerate(planes):
            for slot in range(geometry.slots):
                block, offset = divmod(slot, geometry.block_size)
                for head in range(geometry.heads):
                    for element in range(geometry.stored(number)):
                        yield plane.at(block, offset, head, element), (layer, number, slot, head, element)
