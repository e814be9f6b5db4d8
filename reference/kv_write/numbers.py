"""Elements as bit patterns: what number each is, and the pattern of a number, rounded to the nearest even one.

Where codes take less than a byte, the pattern of an element is the code alone; `in_bytes` says how several share one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache

from kvlockstep.reference.kv_write.small_floats import SMALL_FLOATS, nearest, numbers_of

ELEMENT_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn": 1,
    "int8": 1,
    "uint8": 1,
    "uint4": 1,
    "uint3": 1,
    "uint2": 1,
}
# Codes of less than a byte.
CODE_BITS = {"float4_e2m1fn": 4, "uint4": 4, "uint3": 3, "uint2": 2}
FLOATS = {"float32": "<f", "float16": "<e"}
WHOLE = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0), "uint4": (0.0, 15.0), "uint3": (0.0, 7.0), "uint2": (0.0, 3.0)}
# The largest number of a dtype that codes are kept in; what is larger saturates.
MOST = {**{name: most for name, (_, most) in WHOLE.items()}, **{name: f.most for name, f in SMALL_FLOATS.items()}}
LEAST = {**{name: least for name, (least, _) in WHOLE.items()}, **{name: -f.most for name, f in SMALL_FLOATS.items()}}
# Of a scale that is a power of two its exponent alone is kept.
POWERS, POWER_BIAS = "float8_e8m0fnu", 127


@lru_cache(maxsize=1 << 16)
def decode(bits: int, dtype: str) -> float:
    """Returns the number that a bit pattern stands for, perhaps NaN or infinite."""
    if dtype == "bfloat16":
        return decode(bits << 16, "float32")
    if dtype in FLOATS:
        return float(struct.unpack(FLOATS[dtype], bits.to_bytes(ELEMENT_BYTES[dtype], "little"))[0])
    if dtype in SMALL_FLOATS:
        return numbers_of(dtype)[bits]
    if dtype == POWERS:
        return math.nan if bits == 0xFF else math.ldexp(1.0, bits - POWER_BIAS)
    return float(bits - 256 if dtype == "int8" and bits > 127 else bits)


def encode(number: float, dtype: str) -> int:
    """Returns the bit pattern closest to a number. Codes saturate, and the code of NaN is NaN's or 0."""
    if dtype == "bfloat16":
        wide = encode(number, "float32")
        rounded = wide + 0x7FFF + (wide >> 16 & 1) if math.isfinite(number) else wide
        return rounded >> 16 & 0xFFFF
    if dtype in FLOATS:
        try:
            return int.from_bytes(struct.pack(FLOATS[dtype], number), "little")
        except OverflowError:
            return encode(math.copysign(math.inf, number), dtype)
    if dtype in SMALL_FLOATS:
        return nearest(number, dtype)
    if dtype == POWERS:
        return min(max(round(math.log2(number)) + POWER_BIAS, 0), 0xFE) if number > 0 else 0
    return 0 if math.isnan(number) else round(min(max(number, LEAST[dtype]), MOST[dtype])) & 0xFF


def in_one_byte(kept: str) -> int:
    """Of how many codes a head is made up, at least, so that it takes whole bytes."""
    bits = CODE_BITS.get(kept, 8)
    return math.lcm(bits, 8) // bits


def in_bytes(row: Sequence[int], kept: str, nibbles: str) -> list[int]:
    """The bytes of a row of patterns, the lowest byte of each first; eight codes of uint3 are three bytes."""
    if kept == "uint3":
        words = [sum(code << 3 * i for i, code in enumerate(row[start : start + 8])) for start in range(0, len(row), 8)]
        return [byte for word in words for byte in word.to_bytes(3, "little")]
    if kept in CODE_BITS:
        return _packed(row, CODE_BITS[kept], nibbles)
    return [byte for bits in row for byte in bits.to_bytes(ELEMENT_BYTES[kept], "little")]


def of_bytes(row: Sequence[int], kept: str, nibbles: str) -> list[int]:
    """The patterns of a row of bytes that `in_bytes` made."""
    if kept in CODE_BITS and kept != "uint3":
        return _unpacked(row, CODE_BITS[kept], nibbles)
    width = 3 if kept == "uint3" else ELEMENT_BYTES[kept]
    words = [int.from_bytes(bytes(row[i : i + width]), "little") for i in range(0, len(row), width)]
    return [word >> 3 * i & 7 for word in words for i in range(8)] if kept == "uint3" else words


def _packed(codes: Sequence[int], bits: int, nibbles: str) -> list[int]:
    """Bytes of so many codes as fit: neighbours as `nibbles` "pairs", else one of each half, or of each quarter.

    The first of them is in the lowest bits.
    """
    share = 8 // bits
    part = len(codes) // share
    parts = [codes[i::share] if nibbles == "pairs" else codes[i * part : (i + 1) * part] for i in range(share)]
    return [sum(code << bits * i for i, code in enumerate(byte)) for byte in zip(*parts, strict=True)]


def _unpacked(row: Sequence[int], bits: int, nibbles: str) -> list[int]:
    """The codes of a row of bytes that `_packed` made."""
    parts = [[byte >> shift & ((1 << bits) - 1) for byte in row] for shift in range(0, 8, bits)]
    by_byte = zip(*parts, strict=True) if nibbles == "pairs" else parts
    return [code for some in by_byte for code in some]
