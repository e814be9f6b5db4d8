"""Floats of eight bits and of four: the number of each pattern, and the pattern closest to a number."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import cache
from typing import NamedTuple


class SmallFloat(NamedTuple):
    """A float of a sign, `exponent` bits and `fraction` bits, whose largest finite number is `most`."""

    exponent: int
    fraction: int
    most: float

    @property
    def bias(self) -> int:
        """What is taken off the exponent."""
        return (1 << (self.exponent - 1)) - 1

    @property
    def sign(self) -> int:
        """The bit of the sign."""
        return 1 << (self.exponent + self.fraction)

    @property
    def least(self) -> float:
        """The smallest number above 0."""
        return math.ldexp(1.0, 1 - self.bias - self.fraction)


SMALL_FLOATS = {
    "float8_e4m3fn": SmallFloat(4, 3, 448.0),
    "float8_e5m2": SmallFloat(5, 2, 57344.0),
    "float4_e2m1fn": SmallFloat(2, 1, 6.0),
}
# The only one that has an infinity.
INFINITE = "float8_e5m2"


@cache
def numbers_of(dtype: str) -> tuple[float, ...]:
    """The numbers of all patterns."""
    of = SMALL_FLOATS[dtype]
    positive = []
    for bits in range(of.sign):
        exponent, fraction = bits >> of.fraction, bits & ((1 << of.fraction) - 1)
        whole = fraction + (1 << of.fraction if exponent else 0)
        number = math.ldexp(whole, max(exponent, 1) - of.bias - of.fraction)
        above = math.inf if dtype == INFINITE and not fraction else math.nan
        positive.append(number if number <= of.most else above)
    return (*positive, *(-number for number in positive))


@cache
def _finite(dtype: str) -> list[float]:
    of = SMALL_FLOATS[dtype]
    return [number for number in numbers_of(dtype)[: of.sign] if number <= of.most]


def nearest(number: float, dtype: str) -> int:
    """The pattern closest to a number, on a tie the even one. It saturates; NaN has the last pattern without a sign."""
    of, known = SMALL_FLOATS[dtype], _finite(dtype)
    if math.isnan(number):
        return of.sign - 1
    size = min(abs(number), of.most)
    above = bisect_left(known, size)
    if known[above] != size:
        low, high = size - known[above - 1], known[above] - size
        above -= low < high or (low == high and above % 2)
    return above | (of.sign if math.copysign(1, number) < 0 else 0)
