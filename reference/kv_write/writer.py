"""kv_write in plain Python: bytes, one element after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvlockstep.reference.kv_write.contract import PAD_SLOT, Rows
from kvlockstep.reference.kv_write.geometry import LAYOUTS, Geometry
from kvlockstep.reference.kv_write.layout import layout_of
from kvlockstep.reference.kv_write.numbers import CODE_BITS, ELEMENT_BYTES, LEAST, MOST, decode, encode, in_bytes


class KVWriter:
    """Writes bits as they come where nothing is quantised."""

    layouts = " ".join(LAYOUTS)
    repeats = own_strides = own_dims = can_gather = True

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        self._geometry = self._whole = geometry
        self._planes = layout_of(geometry).planes
        self._width = ELEMENT_BYTES[geometry.kept]
        self._memory, self._scales = bytearray(memory), bytearray(scales)

    def share(self, other: KVWriter, plane: int) -> None:
        """Makes the codes of a plane for another writer, whose buffer of scales it writes to."""
        self._whole, self._scales = other._whole, other._scales
        self._geometry = self._whole.alone(plane)

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        for slot, *rows in zip(slots, keys, values, strict=True):
            if slot == PAD_SLOT:
                continue
            for plane, row in enumerate(rows):
                dim = self._geometry.dim(plane)
                for head in range(self._geometry.heads):
                    self._store(layer, plane, slot, head, row[head * dim : (head + 1) * dim])

    def memory(self) -> bytes:
        return bytes(self._memory)

    def scales(self) -> bytes:
        return bytes(self._scales)

    def gather(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        keys, values = ([self._row(layer, plane, slot) for slot in slots] for plane in (0, 1))
        return keys, values

    def _store(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> None:
        codes = self._codes(layer, plane, slot, head, row)
        kept = self._geometry.kept_of(plane)
        if kept in CODE_BITS or ELEMENT_BYTES[kept] > self._width:
            codes = in_bytes(codes, kept, self._geometry.nibbles)
        for element, bits in enumerate(codes):
            self._put(self._place(layer, plane, slot, head, element), bits)

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        return row

    def _place(self, layer: int, plane: int, slot: int, head: int, element: int) -> int:
        block, offset = divmod(slot, self._geometry.block_size)
        return self._planes[layer][plane].at(block, offset, head, element)

    def _put(self, place: int, bits: int) -> None:
        self._memory[place * self._width : (place + 1) * self._width] = bits.to_bytes(self._width, "little")

    def _row(self, layer: int, plane: int, slot: int) -> list[int]:
        places = [
            self._place(layer, plane, slot, head, element)
            for head in range(self._geometry.heads)
            for element in range(self._geometry.dim(plane))
        ]
        return [int.from_bytes(self._memory[p * self._width : (p + 1) * self._width], "little") for p in places]


class QuantisedWriter(KVWriter):
    """Keeps a scale for each row of a head, and codes that saturate: int8, or fp8 with the largest element at 448."""

    kept = "int8 float8_e4m3fn"
    scale = "row"
    keeps_scales = True
    can_gather = False

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        numbers = [decode(bits, self._geometry.given) for bits in row]
        scale = self._scale(numbers)
        self._put_scale(self._whole.scale_at(layer, plane, slot, head), scale)
        stored = decode(encode(scale, self._geometry.scale_dtype), self._geometry.scale_dtype)
        return [self._code(number, stored) for number in numbers]

    def _scale(self, numbers: Sequence[float]) -> float:
        return max(map(abs, numbers)) / MOST[self._geometry.kept]

    def _code(self, number: float, scale: float) -> int:
        return encode(number / scale if scale else 0.0, self._geometry.kept)

    def _put_scale(self, place: int, number: float, hidden: int | None = None) -> None:
        """Keeps a number, with `hidden` in its lowest four bits if there is anything to hide."""
        width = ELEMENT_BYTES[self._geometry.scale_dtype]
        bits = encode(number, self._geometry.scale_dtype)
        bits = bits if hidden is None else bits & ~15 | hidden
        self._scales[place * width : (place + 1) * width] = bits.to_bytes(width, "little")


class ZeroPointWriter(QuantisedWriter):
    """Keeps a scale and a zero point for each row, so that codes use their whole range whatever the signs are."""

    kept = "uint8 uint4"
    scale = "zero"

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        kept, given = self._geometry.kept, self._geometry.given
        numbers = [decode(bits, given) for bits in row]
        low, high = min(numbers), max(numbers)
        # A row of equal elements has no step; any will do that keeps the element itself in range.
        scale = (high - low) / (MOST[kept] - LEAST[kept]) or abs(low) / MOST[kept] or 1.0
        place = self._whole.scale_at(layer, plane, slot, head)
        self._put_scale(place, scale)
        self._put_scale(place + 1, -low / scale)
        return [encode(number / scale - low / scale, kept) for number in numbers]


class HiddenZeroWriter(QuantisedWriter):
    """Keeps codes of four bits, and a whole zero point in the lowest four bits of the scale of each row."""

    kept = "uint4"
    nibbles = "pairs"
    scale = "hidden"

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        numbers = [decode(bits, self._geometry.given) for bits in row]
        # A zero point between 0 and 15 needs a range that has 0 in it.
        low, high = min(0.0, *numbers), max(0.0, *numbers)
        scale = (high - low) / MOST["uint4"] or 1.0
        zero = round(-low / scale)
        self._put_scale(self._whole.scale_at(layer, plane, slot, head), scale, zero)
        return [encode(number / scale + zero, "uint4") for number in numbers]


class TensorScaleWriter(QuantisedWriter):
    """Divides by the scale that the caller has set for the whole plane."""

    kept = "float8_e4m3fn int8"
    scale = "tensor"
    keeps_scales = False

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        width = ELEMENT_BYTES[self._geometry.scale_dtype]
        place = self._whole.scale_at(layer, plane, slot, head)
        bits = int.from_bytes(self._scales[place * width : (place + 1) * width], "little")
        scale = decode(bits, self._geometry.scale_dtype)
        numbers = [decode(bits, self._geometry.given) for bits in row]
        return [self._code(number if math.isfinite(number) else 0.0, scale) for number in numbers]
