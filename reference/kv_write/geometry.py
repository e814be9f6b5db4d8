"""Geometries of caches: sizes, dtypes, how rows are scaled, and where scales lie.

layout.py lays their elements out.
"""

from __future__ import annotations

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
