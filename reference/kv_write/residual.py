"""kv_write with codes that also say on which side of its step an element is, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvlockstep.reference.kv_write.numbers import MOST, decode, encode
from kvlockstep.reference.kv_write.split import NormWriter, SplitWriter, steps_to_one

# Of a residual code: its lowest bits, and the bit that says that the element is above its step.
STEPS, ABOVE = "uint3", 8


class ResidualWriter(NormWriter):
    """Keeps codes of three bits by the length of a row, and a bit that tells on which side of its step an element is.

    Beside the length is kept how far off steps are, as the root of the mean square.
    """

    kept = "uint4"
    nibbles = "halves"
    scale = "residual"

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        numbers = [decode(bits, self._geometry.given) for bits in row]
        norm = math.hypot(*numbers)
        units = [number / norm if norm else 0.0 for number in numbers]
        codes = [encode(unit * steps_to_one(STEPS) + MOST[STEPS] / 2, STEPS) for unit in units]
        rests = [unit - step_of(code) for unit, code in zip(units, codes, strict=True)]
        place = self._whole.scale_at(layer, plane, slot, head)
        self._put_scale(place, norm)
        self._put_scale(place + 1, self._rest(units))
        return [code | (ABOVE if rest >= 0 else 0) for code, rest in zip(codes, rests, strict=True)]

    def _rest(self, units: Sequence[float]) -> float:
        return mean_rest(units)


class ResidualAndNormWriter(SplitWriter):
    """Keeps K by its length and what is left over, and V by its length in four steps."""

    kept = "uint4"
    value_kept = "uint2"
    scale = "residual"
    value_scale = "norm"
    writers = (ResidualWriter, NormWriter)


def step_of(code: int) -> float:
    """The step that the lowest bits of a residual code stand for, in units of the length of a row."""
    return ((code & ABOVE - 1) - MOST[STEPS] / 2) / steps_to_one(STEPS)


def mean_rest(units: Sequence[float]) -> float:
    """How far elements are from their steps, in units of the length of a row: the root of the mean square."""
    codes = [encode(unit * steps_to_one(STEPS) + MOST[STEPS] / 2, STEPS) for unit in units]
    return math.hypot(*(unit - step_of(code) for unit, code in zip(units, codes, strict=True))) / math.sqrt(len(units))
