"""A Triton kernel that quantises rows of K and V and writes codes and scales to their slots.

It rounds on integers, so that Triton's interpreter, whose casts to float8 are wrong, gives the bits of a card.
"""

from __future__ import annotations

import torch

from kvlockstep.impl.interpreted import tl, triton

MAGIC = tl.constexpr(12582912.0)  # 1.5 x 2^23: its last bit is worth 1, so that an addition rounds to an integer
MAGIC_BITS = tl.constexpr(0x4B400000)


@triton.jit
def _code_of_int8(quotient):
    return (quotient + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS


@triton.jit
def _code_of_float8(quotient):
    bits = quotient.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # From float32 with 23 bits of fraction and bias 127 to 3 bits and bias 7; below 2^-6 in steps of 2^-9.
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    small = (tl.abs(quotient) * 512.0 + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS
    return tl.where(size >= 0x3C800000, normal, small) | ((bits >> 24) & 0x80)


@triton.jit
def _quantise_head(
    rows,
    slot,
    codes,
    scales,
    code_stride,
    scale_stride,
    heads: tl.constexpr,
    dim: tl.constexpr,
    brain: tl.constexpr,
    float8: tl.constexpr,
    most: tl.constexpr,
    least: tl.constexpr,
    width: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, width)
    inside = at < dim
    row = tl.load(rows + (token * heads + head) * dim + at, mask=inside, other=0)
    if brain:  # noqa: SIM108  (a branch of the compiler)
        number = (row.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        number = row.to(tl.float32)
    largest = tl.max(tl.abs(number), axis=0)
    scale = tl.maximum(tl.div_rn(largest, tl.full((), most, tl.float32)), least)
    tl.store(scales + slot * scale_stride + head, scale)
    quotient = tl.div_rn(number, tl.full((width,), 1.0, tl.float32) * scale)
    quotient = tl.minimum(tl.maximum(quotient, -most), most)
    if float8:  # noqa: SIM108
        code = _code_of_float8(quotient)
    else:
        code = _code_of_int8(quotient)
    tl.store(codes + slot * code_stride + head * dim + at, code.to(tl.uint8), mask=inside)


@triton.jit(do_not_specialize=["code_stride", "scale_stride"])
def _quantise(
    keys,
    values,
    slots,
    key_codes,
    value_codes,
    key_scales,
    value_scales,
    code_stride: tl.int64,
    scale_stride: tl.int64,
    heads: tl.constexpr,
    dim: tl.constexpr,
    brain: tl.constexpr,
    float8: tl.constexpr,
    most: tl.constexpr,
    least: tl.constexpr,
    width: tl.constexpr,
):
    slot = tl.load(slots + tl.program_id(0)).to(tl.int64)
    if slot >= 0:
        _quantise_head(
            *(keys, slot, key_codes, key_scales, code_stride, scale_stride),
            *(heads, dim, brain, float8, most, least, width),
        )
        _quantise_head(
            *(values, slot, value_codes, value_scales, code_stride, scale_stride),
            *(heads, dim, brain, float8, most, least, width),
        )


Planes = tuple[torch.Tensor, torch.Tensor]


def write(given: Planes, slots: torch.Tensor, codes: Planes, scales: Planes, most: float, least: float) -> None:
    """Quantises K and V, [token, head, dim] floats, and writes them to slots (int64), nothing where that is negative.

    `codes` are caches of K and V [block, offset, head, dim] of int8 or float8_e4m3fn, and `scales` of float32
    [block, offset, head, 1]; both have blocks that lie behind one another. No scale is below `least`.
    """
    tokens, heads, dim = given[0].shape
    if not tokens:
        return
    brain = given[0].dtype == torch.bfloat16
    keys, values = (rows.contiguous().view(torch.int16) if brain else rows.contiguous() for rows in given)
    _quantise[(tokens, heads)](
        *(keys, values, slots.contiguous(), *(cache.view(torch.uint8) for cache in codes), *scales),
        *(codes[0].stride(1), scales[0].stride(1)),
        heads=heads,
        dim=dim,
        brain=brain,
        float8=codes[0].dtype == torch.float8_e4m3fn,
        most=most,
        least=least,
        width=triton.next_power_of_2(dim),
        num_warps=1,
    )
