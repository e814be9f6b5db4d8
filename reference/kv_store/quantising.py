"""A row of numbers as codes, with a scale for each head.

The scale is the largest number of the head over the largest code, divided in float32. A code is the number over that
scale, divided in float32 and rounded to the nearest code, to the even one on a tie.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv_write.numbers import MOST, decode, encode

# No scale is smaller, so that nothing is divided by 0 or by a number that a device rounds to 0.
LEAST_SCALE = 2.0**-64


def quantised(row: Sequence[int], shape: KVShape) -> tuple[list[int], list[int]]:
    """Returns the codes of a row of patterns, and the float32 pattern of each head's scale."""
    codes, scales = [], []
    for head in range(shape.heads):
        numbers = [decode(bits, shape.given) for bits in row[head * shape.head_dim :][: shape.head_dim]]
        scale = max(_float32(max(map(abs, numbers)) / MOST[shape.dtype]), LEAST_SCALE)
        codes += [_code(number, scale, shape.dtype) for number in numbers]
        scales.append(encode(scale, "float32"))
    return codes, scales


def finite(row: Sequence[int], dtype: str) -> bool:
    """Tells whether every pattern is a finite number."""
    return all(math.isfinite(decode(bits, dtype)) for bits in row)


def _code(number: float, scale: float, dtype: str) -> int:
    quotient = math.copysign(_float32(abs(number) / scale), number)
    return encode(min(max(quotient, -MOST[dtype]), MOST[dtype]), dtype)


def _float32(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])
