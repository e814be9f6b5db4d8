"""Elements as bit patterns: what number each is, and the pattern of a number, rounded to the nearest even one.

Of uint4 and uint3, whose codes take four bits and three, the pattern of an element is the code alone; `in_bytes` says
how several share bytes.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, lru_cache

ELEMENT_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "int8": 1,
    "uint8": 1,
    "uint4": 1,
    "uint3": 1,
}
# Codes of less than a byte.
CODE_BITS = {"uint4": 4, "uint3": 3}
FLOATS = {"float32": "<f", "float16": "<e"}
# The largest number of a dtype that codes are kept in; what is larger saturates.
MOST = {"int8": 127.0, "uint8": 255.0, "uint4": 15.0, "uint3": 7.0, "float8_e4m3fn": 448.0}
LEAST = {"int8": -128.0, "uint8": 0.0, "uint4": 0.0, "uint3": 0.0, "float8_e4m3fn": -448.0}


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


def in_one_byte(kept: str) -> int:
    """Of how many codes a head is made up, at least, so that it takes whole bytes."""
    return {"uint4": 2, "uint3": 8}.get(kept, 1)


def in_bytes(row: Sequence[int], kept: str, nibbles: str) -> list[int]:
    """The bytes of a row of patterns, the lowest byte of each first; eight codes of uint3 are three bytes."""
    if kept == "uint4":
        return packed(row, nibbles)
    if kept == "uint3":
        words = [sum(code << 3 * i for i, code in enumerate(row[start : start + 8])) for start in range(0, len(row), 8)]
        return [byte for word in words for byte in word.to_bytes(3, "little")]
    return [byte for bits in row for byte in bits.to_bytes(ELEMENT_BYTES[kept], "little")]


def of_bytes(row: Sequence[int], kept: str, nibbles: str) -> list[int]:
    """The patterns of a row of bytes that `in_bytes` made."""
    if kept == "uint4":
        return unpacked(row, nibbles)
    width = 3 if kept == "uint3" else ELEMENT_BYTES[kept]
    words = [int.from_bytes(bytes(row[i : i + width]), "little") for i in range(0, len(row), width)]
    return [word >> 3 * i & 7 for word in words for i in range(8)] if kept == "uint3" else words


def packed(codes: Sequence[int], nibbles: str) -> list[int]:
    """The bytes of a row of uint4: two neighbours share one as `nibbles` "pairs", else one code of each half.

    The first of two is in the low four bits.
    """
    half = len(codes) // 2
    low, high = (codes[::2], codes[1::2]) if nibbles == "pairs" else (codes[:half], codes[half:])
    return [first | second << 4 for first, second in zip(low, high, strict=True)]


def unpacked(row: Sequence[int], nibbles: str) -> list[int]:
    """The codes of a row of bytes that `packed` made."""
    low, high = [byte & 15 for byte in row], [byte >> 4 for byte in row]
    return [code for pair in zip(low, high, strict=True) for code in pair] if nibbles == "pairs" else low + high


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
