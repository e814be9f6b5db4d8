"""Elements as bit patterns: what number each is, and the pattern of a number, rounded to the nearest even one."""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from functools import cache, lru_cache

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "int8": 1, "uint8": 1}
FLOATS = {"float32": "<f", "float16": "<e"}
# The largest number of a dtype that codes are kept in; what is larger saturates.
MOST = {"int8": 127.0, "uint8": 255.0, "float8_e4m3fn": 448.0}
LEAST = {"int8": -128.0, "uint8": 0.0, "float8_e4m3fn": -448.0}


@lru_cache(maxsize=1 << 16)
def decode(bits: int, dtype: str) -> float:
    """Returns the number that a bit pattern stands for, perhaps NaN or infinite."""
    if dtype == "bfloat16":
        return decode(bits << 16, "float32")
    if dtype in FLOATS:
        return float(struct.unpack(FLOATS[dtype], bits.to_bytes(ELEMENT_BYTES[dtype], "little"))[0])
    if dtype == "float8_e4m3fn":
        return _float8()[bits]
    return float(bits - 256 if dtype == "int8" and bits > 127 else bits)


def encode(number: float, dtype: str) -> int:
    """Returns the bit pattern closest to a number. Codes saturate, and the code of NaN is NaN's or 0."""
    if dtype == "bfloat16":
        wide = encode(number, "float32")
        nearest = wide + 0x7FFF + (wide >> 16 & 1) if math.isfinite(number) else wide
        return nearest >> 16 & 0xFFFF
    if dtype in FLOATS:
        try:
            return int.from_bytes(struct.pack(FLOATS[dtype], number), "little")
        except OverflowError:
            return encode(math.copysign(math.inf, number), dtype)
    if dtype == "float8_e4m3fn":
        if math.isnan(number):
            return 0x7F
        return _nearest_float8(min(abs(number), MOST[dtype])) | (0x80 if math.copysign(1, number) < 0 else 0)
    return 0 if math.isnan(number) else round(min(max(number, LEAST[dtype]), MOST[dtype])) & 0xFF


@cache
def _float8() -> tuple[float, ...]:
    """The numbers of all 256 patterns of float8_e4m3fn: 1 sign, 4 bits of exponent with bias 7, 3 of fraction."""
    positive = []
    for bits in range(128):
        exponent, fraction = bits >> 3, bits & 7
        positive.append((8 + fraction) * 2.0 ** (exponent - 10) if exponent else fraction * 2.0**-9)
    positive[0x7F] = math.nan
    return (*positive, *(-number for number in positive))


def _nearest_float8(number: float) -> int:
    known = _float8()[:0x7F]
    above = min(bisect_left(known, number), 0x7E)
    if not above or known[above] == number:
        return above
    low, high = number - known[above - 1], known[above] - number
    return above - 1 if low < high or (low == high and above % 2) else above
