"""What a quantised row must be: its scale, its codes by that scale, and what a reader makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from kvlockstep.properties.kv_write.rows import LENGTHS
from kvlockstep.reference.kv_write.contract import WriteTraits
from kvlockstep.reference.kv_write.geometry import Geometry
from kvlockstep.reference.kv_write.numbers import LEAST, MOST, decode, encode
from kvlockstep.reference.kv_write.residual import ABOVE, STEPS, mean_rest
from kvlockstep.reference.kv_write.small_floats import SMALL_FLOATS
from kvlockstep.reference.kv_write.split import next_power, steps_to_one

# Relative errors: a division on a GPU is off by two units in the last place of float32, a quotient in half precision
# by half a unit of that. A scale may be one unit of its dtype off.
QUOTIENT = {"float32": 4e-7, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# A power of two is found through a logarithm.
UNIT = {"float32": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e8m0fnu": 1e-5}
SMALLEST = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133, "float8_e8m0fnu": 2.0**-127}
# The scales of rows whose codes have the range of the row, whatever its signs are.
OF_A_RANGE = ("zero", "low", "hidden")
# Kernels may have a floor for scales, so that none is 0. No row of an attention layer is as small as this.
FLOOR = 1e-5
# How far a power may be from the exact scale, in units of that: half a power, and a tenth.
NEAREST = (0.9 / math.sqrt(2), 1.1 * math.sqrt(2))
# What kernels may add to the length of a row: no row is as short as that.
ADDED = 1.01e-4
# What the mean of rests may be off by, at least: a little is added to the sum of squares.
REST = 2.0**-9


class Decoding(NamedTuple):
    """A code stands for (code - zero) x step + low; a residual one for `rest` more or less."""

    step: float
    zero: float = 0.0
    low: float = 0.0
    rest: float = 0.0


def wanted_scale(geometry: Geometry, numbers: Sequence[float]) -> float:
    """The scale of a row: its largest element, or its range where codes have that, over that of the codes."""
    if geometry.scale in LENGTHS:
        return math.hypot(*numbers)
    if geometry.scale in OF_A_RANGE:
        return (max(numbers) - min(numbers)) / (MOST[geometry.kept] - LEAST[geometry.kept])
    return max(map(abs, numbers)) / MOST[geometry.kept]


def scale_error(geometry: Geometry, traits: WriteTraits, row: Sequence[int], stored: Sequence[int]) -> str | None:
    """Says what is wrong with the scale and the zero point of a row, if anything."""
    numbers = [decode(bits, geometry.given) for bits in row]
    found = _scale(geometry, stored)
    wanted = most = wanted_scale(geometry, numbers)
    if geometry.scale == "hidden":
        # So that the zero point is one of the codes, the range may be wider.
        most = (max(0.0, *numbers) - min(0.0, *numbers)) / MOST[geometry.kept]
    relative, smallest = _relative(geometry), _smallest(geometry)
    if traits.power_scales == "nearest":
        inside = math.frexp(found)[0] == 0.5 and NEAREST[0] * wanted <= found <= NEAREST[1] * wanted
    elif traits.power_scales == "above":
        # The kernel may find one power or the next where the exact scale is one but for a rounding.
        wanted, most = next_power(wanted * (1 - relative)), next_power(wanted * (1 + relative))
        inside = found in (wanted, most)
    else:
        added = ADDED if geometry.scale in LENGTHS else 0.0
        inside = wanted * (1 - relative) - smallest <= found <= most * (1 + relative) + smallest + added
    if inside and geometry.scale == "residual" and found > 0:
        rest, wanted_rest = decode(stored[1], geometry.scale_dtype), mean_rest([number / found for number in numbers])
        # A length that is a unit off is that share of each number of the row, whose mean is one of them in units of it.
        off = UNIT[geometry.scale_dtype] * (wanted_rest + 1 / math.sqrt(len(numbers)))
        if not abs(rest - wanted_rest) <= REST + off:
            return f"is {found:g}, and the mean of rests {rest:g}, not {wanted_rest:g}"
    if inside or _takes_any_scale(geometry, numbers) or wanted <= found <= FLOOR:
        return None
    return f"is {found:g}, not {wanted:g}, for elements from {min(numbers):g} to {max(numbers):g}"


def code_error(
    geometry: Geometry, traits: WriteTraits, row: Sequence[int], kept: Sequence[int], stored: Sequence[int]
) -> str | None:
    """Says which code is not the rounded quotient by the scale that is stored, if any is not."""
    scale, zero, low, _ = by = _decoding(geometry, stored)
    if not (scale > 0 and all(map(math.isfinite, by))):
        return None  # no quotient: what a reader decodes says whether that is right
    error = max(QUOTIENT[geometry.given if traits.quotient == "given" else "float32"], _cut(geometry))
    if geometry.scale in ("low", *LENGTHS):
        # The kernel divides by the scale as it was before it was rounded to be kept.
        error += UNIT[geometry.scale_dtype] + _smallest(geometry) / _scale(geometry, stored)
    for element, (bits, code) in enumerate(zip(row, kept, strict=True)):
        number = decode(bits, geometry.given)
        quotient = (number - low) / scale + zero
        slack = (abs(number / scale) + abs(low / scale) + abs(zero)) * error
        found = _code(geometry, code)
        if not _legal(found, quotient, slack, _steps(geometry), traits.rounding):
            of = f"for {number:g} by scale {scale:g}" + (f" and zero point {zero:g}" if zero else "")
            return f"has code {found:g} at element {element} {of}: the quotient is {quotient:g}"
        if geometry.scale == "residual" and bool(code & ABOVE) != (quotient >= found) and abs(quotient - found) > slack:
            side = "above" if code & ABOVE else "below"
            return f"has a code that says {side} {found:g} at element {element}: the quotient is {quotient:g}"
    return None


def decoded_error(
    geometry: Geometry, traits: WriteTraits, row: Sequence[int], kept: Sequence[int], stored: Sequence[int]
) -> str | None:
    """Says which element a reader decodes too far from what was written, if any."""
    scale, zero, low, rest = _decoding(geometry, stored)
    numbers = [decode(bits, geometry.given) for bits in row]
    least, most = LEAST[geometry.kept] * scale, MOST[geometry.kept] * scale
    wide, rounded = _widths(geometry, numbers, scale, zero)
    for element, (number, code) in enumerate(zip(numbers, kept, strict=True)):
        found = (_code(geometry, code) - zero) * scale + low + (rest if code & ABOVE else -rest)
        if geometry.scale in ("tensor", "one") or traits.power_scales == "nearest":
            # What a scale cannot express saturates, where it is the caller's or may be too small.
            number = min(max(number, least), most)
        if not math.isfinite(found) or abs(found - number) > _bound(geometry, traits, number, wide, zero) + rounded:
            return f"is decoded as {found:g} at element {element}, where {number:g} was written"
    return None


def _scale(geometry: Geometry, stored: Sequence[int]) -> float:
    """The scale of a row, of its tensor, or 1."""
    if geometry.scale == "one":
        return 1.0
    return decode(stored[0] & ~15 if geometry.scale == "hidden" else stored[0], geometry.scale_dtype)


def _decoding(geometry: Geometry, stored: Sequence[int]) -> Decoding:
    scale = _scale(geometry, stored)
    match geometry.scale:
        case "hidden":
            return Decoding(scale, zero=float(stored[0] & 15))
        case "zero":
            return Decoding(scale, zero=decode(stored[1], geometry.scale_dtype))
        case "low":
            return Decoding(scale, low=decode(stored[1], geometry.scale_dtype))
        case "norm":
            return Decoding(scale / steps_to_one(geometry.kept), zero=MOST[geometry.kept] / 2)
        case "residual":
            rest = scale * decode(stored[1], geometry.scale_dtype)
            return Decoding(scale / steps_to_one(STEPS), zero=MOST[STEPS] / 2, rest=rest)
    return Decoding(scale)


def _steps(geometry: Geometry) -> str:
    """The dtype of the part of a code that is a quotient."""
    return STEPS if geometry.scale == "residual" else geometry.kept


def _code(geometry: Geometry, code: int) -> float:
    """The number of that part of a code."""
    return decode(code & ABOVE - 1 if geometry.scale == "residual" else code, _steps(geometry))


def _takes_any_scale(geometry: Geometry, numbers: Sequence[float]) -> bool:
    """Tells whether a row has no range to take a scale from: its elements are equal, and there is a zero point."""
    return geometry.scale in OF_A_RANGE and wanted_scale(geometry, numbers) <= _smallest(geometry)


def _smallest(geometry: Geometry) -> float:
    """What a scale of nearly 0 may be off by."""
    return (16 if geometry.scale == "hidden" else 1) * SMALLEST[geometry.scale_dtype]


def _cut(geometry: Geometry) -> float:
    """What a scale may lose to the zero point in its lowest four bits, relative to it."""
    return 16 * UNIT[geometry.scale_dtype] if geometry.scale == "hidden" else 0.0


def _relative(geometry: Geometry) -> float:
    """The relative error of a scale: its own rounding, and that of the difference in the dtype that is given."""
    two_ends = geometry.scale in OF_A_RANGE
    return UNIT[geometry.scale_dtype] + _cut(geometry) + (QUOTIENT[geometry.given] if two_ends else 0.0)


def _legal(found: float, quotient: float, slack: float, kept: str, rounding: str) -> bool:
    low, high = (min(max(end, LEAST[kept]), MOST[kept]) for end in (quotient - slack, quotient + slack))
    if kept not in SMALL_FLOATS and rounding == "down":
        return math.trunc(low) <= found <= math.trunc(high)
    below, above = (abs(decode(encode(end, kept), kept) - end) for end in (low, high))
    return low - below <= found <= high + above


def _widths(geometry: Geometry, numbers: Sequence[float], scale: float, zero: float) -> tuple[float, float]:
    """How wide a code of a row may be, and what the rounding of its scale and of its zero point adds to an element."""
    wide = scale
    if geometry.scale not in ("tensor", "one"):
        steps = steps_to_one(_steps(geometry)) if geometry.scale in LENGTHS else 1.0
        wide = max(wanted_scale(geometry, numbers) / steps, scale)
        if _takes_any_scale(geometry, numbers):
            # None excuses what is further off than the elements' own size allows.
            wide = min(wide, max(FLOOR, max(map(abs, numbers)) / MOST[geometry.kept]))
    return wide, (MOST[geometry.kept] + abs(zero)) * (_relative(geometry) * wide + _smallest(geometry))


def _bound(geometry: Geometry, traits: WriteTraits, number: float, wide: float, zero: float) -> float:
    """Half a step, or a whole one if codes or zero points are rounded by more."""
    if of := SMALL_FLOATS.get(geometry.kept):
        # Half of the last bit of its fraction, or half of the smallest number.
        return max(abs(number) * 2.0 ** -(of.fraction + 1), wide * of.least / 2) * (1 + 1e-3)
    given = QUOTIENT[geometry.given] * (abs(number) + abs(zero) * wide)
    # A zero point that is a whole number moves every code by up to half a step.
    step = 1.0 if traits.rounding == "down" or geometry.scale == "hidden" else 0.5
    return step * wide * (1 + 1e-3) + given
