"""kv_write with a V that is kept otherwise than K, and more ways to scale, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvlockstep.reference.kv_write.geometry import Geometry
from kvlockstep.reference.kv_write.numbers import MOST, decode, encode
from kvlockstep.reference.kv_write.writer import KVWriter, QuantisedWriter


class UnitScaleWriter(QuantisedWriter):
    """Keeps each element as the fp8 number that is closest to it."""

    kept = "float8_e4m3fn"
    scale = "one"
    keeps_scales = False

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        return [encode(decode(bits, self._geometry.given), self._geometry.kept) for bits in row]


class PowerScaleWriter(QuantisedWriter):
    """Keeps scales that are powers of two, so that a reader can multiply by adding exponents."""

    kept = "float8_e4m3fn"
    power_scales = "above"

    def _scale(self, numbers: Sequence[float]) -> float:
        return next_power(super()._scale(numbers))


class NearestPowerWriter(QuantisedWriter):
    """Keeps floats of four bits, and of the nearest power of two its exponent alone: the largest elements saturate."""

    kept = "float4_e2m1fn"
    scale_dtype = "float8_e8m0fnu"
    nibbles = "pairs"
    power_scales = "nearest"

    def _scale(self, numbers: Sequence[float]) -> float:
        exact = super()._scale(numbers)
        return math.ldexp(1.0, round(math.log2(exact))) if exact else 0.0


class LowEndWriter(QuantisedWriter):
    """Keeps a scale and the least element of each row."""

    kept = "uint4 uint3"
    nibbles = "pairs"
    scale = "low"

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        kept = self._geometry.kept
        numbers = [decode(bits, self._geometry.given) for bits in row]
        low = min(numbers)
        scale = (max(numbers) - low) / MOST[kept]
        place = self._whole.scale_at(layer, plane, slot, head)
        self._put_scale(place, scale)
        self._put_scale(place + 1, low)
        return [self._code(number - low, scale) for number in numbers]


class NormWriter(QuantisedWriter):
    """Keeps the length of a row, and its elements in equal steps of that length."""

    kept = "uint4 uint3"
    nibbles = "pairs"
    scale = "norm"

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        kept = self._geometry.kept
        numbers = [decode(bits, self._geometry.given) for bits in row]
        norm = math.hypot(*numbers)
        self._put_scale(self._whole.scale_at(layer, plane, slot, head), norm)
        steps = norm / steps_to_one(kept)
        return [encode(number / steps + MOST[kept] / 2 if steps else 0.0, kept) for number in numbers]


class SplitWriter(KVWriter):
    """Keeps K by one writer and V by another: here the tiles of a latent, and its rotated part as it is given.

    The tiles are the heads of K.
    """

    layouts = "NHD"
    kept = "float8_e4m3fn"
    scale = "row"
    value_kept = "same"
    value_scale = "none"
    keeps_scales = True
    can_gather = repeats = False
    writers: tuple[type[KVWriter], type[KVWriter]] = (QuantisedWriter, KVWriter)

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        super().open(geometry, memory, scales)
        self._halves = tuple(writer() for writer in self.writers)
        for plane, half in enumerate(self._halves):
            half.share(self, plane)

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        return self._halves[plane]._codes(layer, plane, slot, head, row)


class NormAndLowWriter(SplitWriter):
    """Keeps K by its length, and V by its least element."""

    kept = value_kept = "uint4"
    nibbles = "pairs"
    scale = "norm"
    value_scale = "low"
    writers = (NormWriter, LowEndWriter)


def steps_to_one(kept: str) -> float:
    """How many steps of a code there are from 0 to the length of a row."""
    return (MOST[kept] + 1) / 2


def next_power(number: float) -> float:
    """The first power of two that is not less than a number; 0 for 0."""
    if not number:
        return 0.0
    fraction, exponent = math.frexp(number)
    return math.ldexp(1.0, exponent - (fraction == 0.5))
