"""Where each element of a cache lies: geometries, their layouts, and the places of elements in one flat buffer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.kv_write.numbers import CODE_BITS, ELEMENT_BYTES, in_one_byte

LAYOUTS = ("NHD", "HND", "packed", "joint", "paired")
# The ways to scale, and how many numbers are kept for a row of one head.
SCALES = {"none": 0, "tensor": 0, "one": 0, "row": 1, "zero": 2, "low": 2, "norm": 1, "residual": 2, "hidden": 1}
NIBBLES = ("halves", "pairs")
GUARD = 8  # elements in front of, between and behind the planes, which belong to nobody


class Geometry(NamedTuple):
    """A cache of `blocks` blocks of `block_size` tokens in each of `layers` layers.

    A token has `heads` heads, each of `key_dim` elements of K and `value_dim` of V.

    Rows are `given` in one dtype and `kept` in another or in the same. `layout` is one of LAYOUTS, with element strides
    that leave `key_gap` and `value_gap` elements free behind each token or block; "packed" keeps `pack` elements of K
    together. `scale` is one of SCALES, kept as `scale_dtype`. Codes share bytes by `nibbles`, one of NIBBLES.
    V may have a `value_kept` and a `value_scale` of its own; places are then bytes, of which it takes several.
    """

    blocks: int
    block_size: int
    layers: int
    heads: int
    key_dim: int
    value_dim: int
    given: str
    kept: str
    layout: str = "NHD"
    key_gap: int = 0
    value_gap: int = 0
    pack: int = 1
    scale: str = "none"
    scale_dtype: str = "float32"
    nibbles: str = "halves"
    value_kept: str = ""
    value_scale: str = ""

    def check(self) -> None:
        """Raises InvalidArgument for a size below 1, an unknown layout or dtype, or dims that do not fit the layout."""
        sizes = (self.blocks, self.block_size, self.layers, self.heads, self.key_dim, self.value_dim, self.pack)
        named = self.layout in LAYOUTS and self.nibbles in NIBBLES
        named = named and all(self.scale_of(p) in SCALES and self.kept_of(p) in ELEMENT_BYTES for p in (0, 1))
        if min(sizes) < 1 or min(self.key_gap, self.value_gap) < 0 or not named or not self._fits():
            raise InvalidArgument(f"no such geometry: {self}")

    def _fits(self) -> bool:
        dims = (self.key_dim % in_one_byte(self.kept_of(0)), self.value_dim % in_one_byte(self.kept_of(1)))
        fits = dims == (0, 0) and self.stored(0) % self.pack == 0
        if self.kept_of(1) != self.kept:
            fits = fits and self.layout == "NHD" and self.width == 1
        return fits and (self.layout != "paired" or self.key_dim == self.value_dim)

    def dim(self, plane: int) -> int:
        """Elements of a head: those of K in plane 0, of V in plane 1."""
        return self.value_dim if plane else self.key_dim

    def kept_of(self, plane: int) -> str:
        """The dtype that K or V is kept in."""
        return (self.value_kept or self.kept) if plane else self.kept

    def scale_of(self, plane: int) -> str:
        """What turns the codes of K or of V into numbers: one of SCALES."""
        return (self.value_scale or self.scale) if plane else self.scale

    def alone(self, plane: int) -> Geometry:
        """The same with both kept as K is, or as V is. Places are not the same."""
        if not (plane and (self.value_kept or self.value_scale)):
            return self
        return self._replace(kept=self.kept_of(1), scale=self.scale_of(1), value_kept="", value_scale="")

    def stored(self, plane: int) -> int:
        """Places that a head takes: where codes share bytes, bytes; of elements wider than a place, bytes too."""
        kept = self.kept_of(plane)
        if kept in CODE_BITS:
            return self.dim(plane) * CODE_BITS[kept] // 8
        return self.dim(plane) * (ELEMENT_BYTES[kept] // self.width)

    @property
    def width(self) -> int:
        """Bytes of a place of the flat buffer."""
        return ELEMENT_BYTES[self.kept]

    @property
    def slots(self) -> int:
        """Slots of a layer."""
        return self.blocks * self.block_size

    @property
    def scale_numbers(self) -> int:
        """Numbers that are kept for one row of one head: its scale, and a zero point or a low end beside it."""
        return SCALES[self.scale]

    def scale_at(self, layer: int, plane: int, slot: int, head: int) -> int:
        """The place of a row's scale in the buffer of scales; with "tensor" the place of the plane's."""
        if self.scale == "tensor":
            return GUARD + 2 * layer + plane
        numbers = [SCALES[self.scale_of(p)] for p in (0, 1)]
        rows = self.slots * self.heads
        start = rows * (layer * sum(numbers) + (numbers[0] if plane else 0))
        return GUARD + start + (slot * self.heads + head) * numbers[plane]

    @property
    def scale_places(self) -> int:
        """Places of the buffer of scales, guards included."""
        numbers = sum(SCALES[self.scale_of(plane)] for plane in (0, 1)) * self.slots * self.heads
        return self.layers * (2 if self.scale == "tensor" else numbers) + 2 * GUARD


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
