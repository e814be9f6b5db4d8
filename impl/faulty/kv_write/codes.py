"""Faults of kv_write: the codes of quantised elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_write.numbers import MOST, decode, encode
from kvlockstep.reference.kv_write.residual import ABOVE, ResidualAndNormWriter, ResidualWriter
from kvlockstep.reference.kv_write.split import (
    LowEndWriter,
    UnitScaleWriter,
)
from kvlockstep.reference.kv_write.writer import (
    QuantisedWriter,
    TensorScaleWriter,
    ZeroPointWriter,
)


@fault("write-codes-truncated", law="codes", seen=("mutant",))
class Truncates(QuantisedWriter):
    """Quotients are cut off towards 0 where the code is an integer."""

    def _code(self, number: float, scale: float) -> int:
        if self._geometry.kept != "int8" or not scale:
            return super()._code(number, scale)
        return encode(math.trunc(number / scale), "int8")


@fault("write-codes-wrap", law="codes", seen=("mutant",))
class CodesWrap(TensorScaleWriter):
    """Numbers out of the range of int8 wrap around."""

    kept = "int8"

    def _code(self, number: float, scale: float) -> int:
        return round(min(max(number / scale, -(2.0**31)), 2.0**31)) & 0xFF


@fault("write-fp8-nan", law="codes", seen=("mutant",))
class NotSaturating(TensorScaleWriter):
    """Numbers too large for fp8 become NaN."""

    kept = "float8_e4m3fn"

    def _code(self, number: float, scale: float) -> int:
        return 0x7F if abs(number / scale) > MOST["float8_e4m3fn"] else super()._code(number, scale)


@fault("write-nibbles-swapped", law="codes", seen=("mutant",))
class NibblesSwapped(ZeroPointWriter):
    """Of two codes in a byte the first is in the high four bits."""

    kept = "uint4"

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        codes = super()._codes(layer, plane, slot, head, row)
        half = len(codes) // 2
        return [*codes[half:], *codes[:half]]


@fault("write-nibble-kept", law="codes", seen=("mutant",))
class NibbleKept(ZeroPointWriter):
    """A byte of two codes is written with a logical or, so that bits of its former codes stay."""

    kept = "uint4"

    def _put(self, place: int, bits: int) -> None:
        super()._put(place, bits | self._memory[place])


@fault("write-cast-wraps", law="codes", seen=("mutant",))
class CastWraps(UnitScaleWriter):
    """An element too large for fp8 becomes NaN, where nothing scales it."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        numbers = [decode(bits, self._geometry.given) for bits in row]
        return [0x7F if abs(number) > 464 else encode(number, self._geometry.kept) for number in numbers]


@fault("write-three-bits-reversed", law="codes", seen=("mutant",))
class ThreeBitsReversed(LowEndWriter):
    """Of eight codes in three bytes the last one is in the lowest bits."""

    kept = "uint3"

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        codes = super()._codes(layer, plane, slot, head, row)
        return [code for start in range(0, len(codes), 8) for code in reversed(codes[start : start + 8])]


@fault("write-rest-without-side", law="codes", seen=("mutant",))
class RestWithoutSide(ResidualWriter):
    """The bit that says on which side of its step an element is, is never set."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        return [code & ABOVE - 1 for code in super()._codes(layer, plane, slot, head, row)]


@fault("write-quarters-in-pairs", law="codes", seen=("mutant",))
class QuartersInPairs(ResidualAndNormWriter):
    """Four neighbours of V share a byte, where a reader takes one from each quarter of the head."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        codes = super()._codes(layer, plane, slot, head, row)
        return [code for i in range(4) for code in codes[i::4]] if plane else codes
