"""kv_write for attention with a latent, in plain Python: K is quantised, and V is kept as it is given."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvlockstep.reference.kv_write.numbers import MOST
from kvlockstep.reference.kv_write.writer import QuantisedWriter, TensorScaleWriter


class RawValuesWriter(QuantisedWriter):
    """Keeps fp8 codes of K with a scale for each row of a head, and V as the bytes that are given.

    A latent is cut into tiles, each with its scale: they are the heads of K. The rotated part beside it is V.
    """

    layouts = "NHD"
    kept = "float8_e4m3fn"
    raw_values = True


class PowerScaleWriter(RawValuesWriter):
    """The same with scales that are powers of two, so that a reader can multiply by adding exponents."""

    power_scales = True

    def _scale(self, numbers: Sequence[float]) -> float:
        return next_power(max(map(abs, numbers)) / MOST[self._geometry.kept])


class UnitScaleWriter(TensorScaleWriter):
    """Keeps each element as the fp8 number that is closest to it."""

    kept = "float8_e4m3fn"
    unit_scale = True


def next_power(number: float) -> float:
    """The first power of two that is not less than a number; 0 for 0."""
    if not number:
        return 0.0
    fraction, exponent = math.frexp(number)
    return math.ldexp(1.0, exponent - (fraction == 0.5))
