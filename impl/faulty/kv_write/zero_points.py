"""Faults of kv_write: zero points, low ends, and rows of equal elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_write.numbers import LEAST, MOST, decode, encode
from kvlockstep.reference.kv_write.split import (
    LowEndWriter,
)
from kvlockstep.reference.kv_write.writer import (
    HiddenZeroWriter,
    ZeroPointWriter,
)


@fault("write-zero-divides", law="decoded_within_bound", seen=("mutant",))
class DividesByZero(ZeroPointWriter):
    """A row of equal elements has the scale 0 and NaN as its zero point."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        if len(set(row)) > 1:
            return super()._codes(layer, plane, slot, head, row)
        place = self._geometry.scale_at(layer, plane, slot, head)
        self._put_scale(place, 0.0)
        self._put_scale(place + 1, math.nan)
        return [0 for _ in row]


@fault("write-zero-clamped", law="decoded_within_bound", seen=("mutant",))
class ZeroPointClamped(ZeroPointWriter):
    """The zero point is kept in the range of codes, though the range of the row lacks 0."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        kept, given = self._geometry.kept, self._geometry.given
        super()._codes(layer, plane, slot, head, row)
        numbers = [decode(bits, given) for bits in row]
        scale = (max(numbers) - min(numbers)) / (MOST[kept] - LEAST[kept])
        if not scale:
            return super()._codes(layer, plane, slot, head, row)
        zero = min(max(-min(numbers) / scale, LEAST[kept]), MOST[kept])
        self._put_scale(self._geometry.scale_at(layer, plane, slot, head) + 1, zero)
        return [encode(number / scale + zero, kept) for number in numbers]


@fault("write-hidden-clamped", law="decoded_within_bound", seen=("mutant",))
class HiddenZeroClamped(HiddenZeroWriter):
    """The zero point that the scale of a row hides is cut off at 0 or 15: its range lacks 0."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        numbers = [decode(bits, self._geometry.given) for bits in row]
        low, scale = min(numbers), (max(numbers) - min(numbers)) / 15
        if not scale:
            return super()._codes(layer, plane, slot, head, row)
        zero = min(max(round(-low / scale), 0), 15)
        self._put_scale(self._geometry.scale_at(layer, plane, slot, head), scale, zero)
        return [encode(number / scale + zero, "uint4") for number in numbers]


@fault("write-equal-whole", law="decoded_within_bound", seen=("mutant",))
class EqualRowsWhole(ZeroPointWriter):
    """A row of equal elements has the scale 1, so that it is decoded as a whole number."""

    kept = "uint8"

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        numbers = [decode(bits, self._geometry.given) for bits in row]
        if min(numbers) < max(numbers):
            return super()._codes(layer, plane, slot, head, row)
        place = self._geometry.scale_at(layer, plane, slot, head)
        self._put_scale(place, 1.0)
        self._put_scale(place + 1, 128.0)
        return [encode(number + 128.0, "uint8") for number in numbers]


@fault("write-low-end-clamped", law="decoded_within_bound", seen=("mutant",))
class LowEndClamped(LowEndWriter):
    """The least element that is kept is 0 at most, though codes count from that of the row."""

    def _put_scale(self, place: int, number: float, hidden: int | None = None) -> None:
        low_end = (place - self._whole.scale_at(0, 0, 0, 0)) % 2
        super()._put_scale(place, min(number, 0.0) if low_end else number, hidden)
