"""Faults of kv_write."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_write.contract import PAD_SLOT, Rows
from kvlockstep.reference.kv_write.geometry import Geometry
from kvlockstep.reference.kv_write.numbers import LEAST, MOST, decode, encode
from kvlockstep.reference.kv_write.residual import ABOVE, ResidualAndNormWriter, ResidualWriter
from kvlockstep.reference.kv_write.split import (
    LowEndWriter,
    NearestPowerWriter,
    NormAndLowWriter,
    NormWriter,
    PowerScaleWriter,
    SplitWriter,
    UnitScaleWriter,
)
from kvlockstep.reference.kv_write.writer import (
    HiddenZeroWriter,
    KVWriter,
    QuantisedWriter,
    TensorScaleWriter,
    ZeroPointWriter,
)


@fault("write-pad-wraps", law="padding", seen=("vllm#43810",))
class PaddingWraps(KVWriter):
    """Padding is written to the last slot of its layer."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        last = self._geometry.slots - 1
        padding = [i for i, slot in enumerate(slots) if slot == PAD_SLOT]
        super().write(layer, [last] * len(padding), [keys[i] for i in padding], [values[i] for i in padding])
        super().write(layer, slots, keys, values)


@fault("write-strides-of-k", law="write_isolation", seen=("flashinfer#527",))
class StridesOfK(KVWriter):
    """V is written with the strides of K."""

    def _place(self, layer: int, plane: int, slot: int, head: int, element: int) -> int:
        block, offset = divmod(slot, self._geometry.block_size)
        where = self._planes[layer][0]._replace(base=self._planes[layer][plane].base)
        return min(where.at(block, offset, head, element), len(self._memory) // self._width - 1)


@fault("write-dense-tokens", law="write_isolation", seen=("flashinfer#527",))
class DenseTokens(KVWriter):
    """Tokens are taken to lie next to one another, whatever gap is between them."""

    def _place(self, layer: int, plane: int, slot: int, head: int, element: int) -> int:
        gap = self._geometry.value_gap if plane else self._geometry.key_gap
        return super()._place(layer, plane, slot, head, element) - gap * (slot % self._geometry.block_size)


@fault("write-16-bits", law="write_isolation", seen=("flashinfer#3136",))
class NarrowPlaces(KVWriter):
    """Places are computed in too few bits, so that the far end of the buffer wraps around to its start."""

    def _place(self, layer: int, plane: int, slot: int, head: int, element: int) -> int:
        return super()._place(layer, plane, slot, head, element) % 128


@fault("write-tail-tile", law="write_isolation", seen=("mutant",))
class TailTile(KVWriter):
    """A row of a head is written in tiles of four elements, and the last tile is not masked."""

    def _store(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> None:
        super()._store(layer, plane, slot, head, row)
        last = self._geometry.heads - 1
        if head == last and self._geometry.layout == "NHD":
            place = self._place(layer, plane, slot, head, 0)
            for element in range(len(row), -(-len(row) // 4) * 4):
                self._put(min(place + element, len(self._memory) // self._width - 1), 0)


@fault("write-odd-element", law="content_equality", seen=("mutant",))
class LastElementLost(KVWriter):
    """The last element of a head is left out where the head dim is odd."""

    def _store(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> None:
        super()._store(layer, plane, slot, head, row[: len(row) // 2 * 2])


@fault("write-through-floats", law="content_equality", seen=("FastDeploy#5544 (b)",))
class ThroughFloats(KVWriter):
    """Bits are moved as numbers, so that NaNs lose their payload."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        given = self._geometry.given
        return [encode(math.nan, given) if math.isnan(decode(bits, given)) else bits for bits in row]


@fault("write-padding-shifts", law="content_equality", seen=("vllm#13418",))
class PaddingShifts(KVWriter):
    """Padding slots are dropped and their rows are not, so that later rows shift."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        real = [slot for slot in slots if slot != PAD_SLOT]
        super().write(layer, real, keys[: len(real)], values[: len(real)])


@fault("write-repeats-mixed", law="repeats", seen=("mutant",))
class RepeatsAreAdded(KVWriter):
    """Rows of a slot that comes twice are merged bit by bit."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        super().write(layer, slots, _merged(slots, keys), values)


def _merged(slots: Sequence[int], rows: Rows) -> Rows:
    """The rows, each with the bits of those before it that are for the same slot."""
    merged = [list(row) for row in rows]
    for i, slot in enumerate(slots):
        for j in range(i):
            if slots[j] == slot:
                merged[i] = [a | b for a, b in zip(merged[i], merged[j], strict=True)]
    return merged


@fault("write-gather-sorted", law="gather_exact", seen=("mutant",))
class GathersSorted(KVWriter):
    """A gather returns the rows in the order of their slots."""

    def gather(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        return super().gather(layer, sorted(slots))


@fault("write-gather-clears", law="purity", seen=("mutant",))
class GatherClears(KVWriter):
    """A gather clears the first element of each row that it has read."""

    def gather(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        found = super().gather(layer, slots)
        for slot in slots:
            self._put(self._place(layer, 0, slot, 0, 0), 0)
        return found


@fault("write-scale-of-tile", law="scale_exact", seen=("mutant",))
class ScaleOfTile(QuantisedWriter):
    """The scale is that of the largest element so far, of this row or of one before it in the call."""

    _largest = 0.0

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        self._largest = 0.0
        super().write(layer, slots, keys, values)

    def _scale(self, numbers: Sequence[float]) -> float:
        self._largest = max(self._largest, super()._scale(numbers))
        return self._largest


@fault("write-scale-first-half", law="scale_exact", seen=("mutant",))
class ScaleOfFirstHalf(QuantisedWriter):
    """The scale leaves out the last element of a row."""

    def _scale(self, numbers: Sequence[float]) -> float:
        return super()._scale(numbers[:-1] or numbers)


@fault("write-scale-next-row", law="write_isolation", seen=("mutant",))
class ScaleOfNextRow(QuantisedWriter):
    """The scale of the last head is stored twice, the second time behind its row."""

    def _put_scale(self, place: int, number: float, hidden: int | None = None) -> None:
        super()._put_scale(place, number, hidden)
        super()._put_scale(place + 1, number, hidden)


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


@fault("write-rotated-part-rounded", law="content_equality", seen=("mutant",))
class RotatedPartRounded(SplitWriter):
    """Beside codes of K, V is kept in the dtype that is given, but goes through fp8."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        codes, given = super()._codes(layer, plane, slot, head, row), self._geometry.given
        if plane == 0:
            return codes
        return [encode(decode(encode(decode(b, given), "float8_e4m3fn"), "float8_e4m3fn"), given) for b in codes]


@fault("write-rotated-part-scaled", law="write_isolation", seen=("mutant",))
class RotatedPartScaled(SplitWriter):
    """A scale is kept for the rotated part as well, which has none, in the place of another row's."""

    def _store(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> None:
        super()._store(layer, plane, slot, head, row)
        if plane:
            place = 4 * self._geometry.scale_at(layer, 0, self._geometry.slots - 1 - slot, head)
            self._scales[place : place + 4] = bytes(4)


@fault("write-rotated-part-twice", law="repeats", seen=("mutant",))
class RotatedPartTwice(SplitWriter):
    """Beside codes of K, the rotated parts of a slot that comes twice are merged bit by bit."""

    repeats = True

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        super().write(layer, slots, keys, _merged(slots, values))


@fault("write-power-below", law="scale_exact", seen=("mutant",))
class PowerBelow(PowerScaleWriter):
    """The scale is the power of two below the exact scale, so that the largest elements saturate."""

    def _scale(self, numbers: Sequence[float]) -> float:
        return super()._scale(numbers) / 2


@fault("write-scale-no-power", law="scale_exact", seen=("mutant",))
class NoPower(PowerScaleWriter):
    """The scale is exact where a reader takes its exponent alone."""

    def _scale(self, numbers: Sequence[float]) -> float:
        return max(map(abs, numbers)) / MOST[self._geometry.kept]


@fault("write-cast-wraps", law="codes", seen=("mutant",))
class CastWraps(UnitScaleWriter):
    """An element too large for fp8 becomes NaN, where nothing scales it."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        numbers = [decode(bits, self._geometry.given) for bits in row]
        return [0x7F if abs(number) > 464 else encode(number, self._geometry.kept) for number in numbers]


@fault("write-low-end-clamped", law="decoded_within_bound", seen=("mutant",))
class LowEndClamped(LowEndWriter):
    """The least element that is kept is 0 at most, though codes count from that of the row."""

    def _put_scale(self, place: int, number: float, hidden: int | None = None) -> None:
        low_end = (place - self._whole.scale_at(0, 0, 0, 0)) % 2
        super()._put_scale(place, min(number, 0.0) if low_end else number, hidden)


@fault("write-three-bits-reversed", law="codes", seen=("mutant",))
class ThreeBitsReversed(LowEndWriter):
    """Of eight codes in three bytes the last one is in the lowest bits."""

    kept = "uint3"

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        codes = super()._codes(layer, plane, slot, head, row)
        return [code for start in range(0, len(codes), 8) for code in reversed(codes[start : start + 8])]


@fault("write-norm-of-half", law="scale_exact", seen=("mutant",))
class NormOfHalf(NormWriter):
    """The length of a row leaves out its last element."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        codes = super()._codes(layer, plane, slot, head, row)
        numbers = [decode(bits, self._geometry.given) for bits in row[:-1]]
        self._put_scale(self._whole.scale_at(layer, plane, slot, head), math.hypot(*numbers))
        return codes


@fault("write-v-scales-of-k", law="scale_exact", seen=("mutant",))
class ScalesOfK(NormAndLowWriter):
    """The numbers of V are kept where they would be if V had as many of them as K has."""

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        super().open(geometry, memory, scales)
        for half in self._halves:
            half._whole = geometry._replace(value_scale="norm")


@fault("write-rest-without-side", law="codes", seen=("mutant",))
class RestWithoutSide(ResidualWriter):
    """The bit that says on which side of its step an element is, is never set."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        return [code & ABOVE - 1 for code in super()._codes(layer, plane, slot, head, row)]


@fault("write-rest-summed", law="scale_exact", seen=("mutant",))
class RestSummed(ResidualWriter):
    """The rest of a row is kept as its length, where a reader takes it for the mean."""

    def _rest(self, units: Sequence[float]) -> float:
        return super()._rest(units) * math.sqrt(len(units))


@fault("write-quarters-in-pairs", law="codes", seen=("mutant",))
class QuartersInPairs(ResidualAndNormWriter):
    """Four neighbours of V share a byte, where a reader takes one from each quarter of the head."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        codes = super()._codes(layer, plane, slot, head, row)
        return [code for i in range(4) for code in codes[i::4]] if plane else codes


@fault("write-power-cut-off", law="scale_exact", seen=("mutant",))
class PowerCutOff(NearestPowerWriter):
    """The exponent of a scale is cut off where the nearest one is kept: up to half of an element is lost."""

    def _scale(self, numbers: Sequence[float]) -> float:
        exact = max(map(abs, numbers)) / MOST[self._geometry.kept]
        return math.ldexp(1.0, math.floor(math.log2(exact))) if exact else 0.0
