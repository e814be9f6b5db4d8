"""The rows that are written: a stamp is a kind of row and a seed. Random normal rows find nothing in a quantiser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from kvlockstep.reference.kv_write.geometry import Geometry
from kvlockstep.reference.kv_write.numbers import ELEMENT_BYTES, encode

Row = list[int]
SEEDS = 16
# Of one row of a head; KINDS[stamp % len(KINDS)] is the kind of a stamp, stamp // len(KINDS) its seed.
KINDS = ("mixed", "zeros", "equal", "positive", "negative", "outlier", "tiny", "huge", "alternating")
NARROW = ("zeros", "equal", "tiny")
# Scales that are the length of a row, and how large an element may be: kernels sum squares in float32.
LENGTHS, LONG = ("norm", "residual"), 1e15
ONE_SIGNED = ("equal", "positive", "negative")
# The largest elements of rows that are not huge, and those of huge ones: far from the largest number of the dtype, so
# that no quotient of a kernel is infinite.
HUGE = {"float32": 1e30, "bfloat16": 1e30, "float16": 30000.0}
TINY = {"float32": 1e-30, "bfloat16": 1e-30, "float16": 1e-5}
SPECIAL_BITS = {
    4: (0x7FC00001, 0xFF800001, 0x80000000, 1, 0),
    2: (0x7FC1, 0xFF81, 0x8000, 1, 0),
    1: (0x7F, 0xFF, 0x80, 1, 0),
}


def stamp_of(kind: str, seed: int) -> int:
    """The stamp of a kind of row with a seed."""
    return seed * len(KINDS) + KINDS.index(kind)


def kind_of(stamp: int) -> str:
    """The kind of row that a stamp stands for."""
    return KINDS[stamp % len(KINDS)]


def outlier_at(seed: int, plane: int, head: int, dim: int) -> int:
    """Where a row has its outlier: at each of up to SEEDS elements, else spread from the first to the last."""
    spread = seed if dim <= SEEDS else seed * (dim - 1) // (SEEDS - 1)
    return (spread + 3 * plane + 5 * head) % dim


def row_of(stamp: int, plane: int, geometry: Geometry) -> Row:
    """The elements of a stamp as patterns of the dtype that is given, head after head. K and V have different rows."""
    return list(_row(stamp, plane, geometry))


def both_signs(row: Row, plane: int, geometry: Geometry) -> Row:
    """The row with the sign of each head's first element turned, where all elements of the head have the same sign."""
    dim, sign = geometry.dim(plane), 1 << (8 * ELEMENT_BYTES[geometry.given] - 1)
    heads = [row[i : i + dim] for i in range(0, len(row), dim)]
    turned = [[head[0] ^ sign, *head[1:]] if len({bits & sign for bits in head}) == 1 else head for head in heads]
    return [bits for head in turned for bits in head]


@lru_cache(maxsize=1 << 14)
def _row(stamp: int, plane: int, geometry: Geometry) -> Sequence[int]:
    heads, dim = geometry.heads, geometry.dim(plane)
    if geometry.scale_of(plane) == "none":
        return _bits(stamp, plane, geometry, heads * dim)
    huge = HUGE[geometry.given]
    if geometry.scale_of(plane) in LENGTHS:
        # The length of a row is kept in the dtype of scales, so it has to be in range as well.
        huge = min(huge / 2, HUGE[geometry.scale_dtype] / 2, LONG)
    numbers = [number for head in range(heads) for number in _numbers(stamp, plane, head, dim, geometry.given, huge)]
    return [encode(number, geometry.given) for number in numbers]


def _bits(stamp: int, plane: int, geometry: Geometry, count: int) -> Row:
    width = ELEMENT_BYTES[geometry.given]
    if stamp % 3 == 0:
        special = SPECIAL_BITS[width]
        return [special[(stamp // 3 + plane + i) % len(special)] for i in range(count)]
    return [
        ((stamp + 7 * plane) * 0x9E3779B1 + i * 0x85EBCA77 + 0x01010101 * plane + 1) % 256**width for i in range(count)
    ]


def _numbers(stamp: int, plane: int, head: int, dim: int, dtype: str, huge: float) -> Sequence[float]:
    seed = stamp // len(KINDS) + 3 * plane + 5 * head
    # Seven steps in each sign, no two neighbours alike; what is given has to hold them exactly.
    mixed = [((7 * seed + 4 * i + i * i) % 15 - 7) / 4 + 0.125 for i in range(dim)]
    match kind_of(stamp):
        case "zeros":
            return [0.0] * dim
        case "equal":
            return [(seed % 5 - 2) / 2 + 0.25] * dim
        case "positive":
            return [number + 2.5 for number in mixed]
        case "negative":
            return [number - 2.5 for number in mixed]
        case "outlier":
            at = outlier_at(stamp // len(KINDS), plane, head, dim)
            return [math.copysign(96.0, number) if i == at else number / 64 for i, number in enumerate(mixed)]
        case "tiny":
            return [number * TINY[dtype] for number in mixed]
        case "huge":
            return [number / 2 * huge for number in mixed]
        case "alternating":
            return [math.copysign(1.75 + seed % 3, -1 if i % 2 else 1) for i in range(dim)]
    return mixed
