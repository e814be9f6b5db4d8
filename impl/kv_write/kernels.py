"""A Triton kernel that writes rows of K or V into a cache of any strides, as bits or quantised.

Without a GPU Triton's interpreter runs it on CPU tensors. Every offset is computed in 64 bits.
"""

from __future__ import annotations

import torch

from kvlockstep.impl.interpreted import tl, triton

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@triton.jit(do_not_specialize=["block_stride", "offset_stride", "head_stride", "outer_stride"])
def _write(
    rows,
    slots,
    cache,
    scales,
    row_stride,
    block_stride: tl.int64,
    offset_stride: tl.int64,
    head_stride: tl.int64,
    outer_stride: tl.int64,
    block_size: tl.constexpr,
    heads: tl.constexpr,
    dim: tl.constexpr,
    pack: tl.constexpr,
    most: tl.constexpr,
    rounds: tl.constexpr,
    width: tl.constexpr,
):
    token = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        at = tl.arange(0, width)
        inside = at < dim
        row = tl.load(rows + token * row_stride + head * dim + at, mask=inside, other=0)
        if most > 0:
            number = row.to(tl.float32)
            scale = tl.max(tl.abs(number)) / most
            tl.store(scales + slot * heads + head, scale)
            quotient = tl.where(scale > 0, number / tl.where(scale > 0, scale, 1.0), 0.0)
            quotient = tl.minimum(tl.maximum(quotient, -most), most)
            if rounds:
                quotient = tl.floor(tl.abs(quotient) + 0.5) * tl.where(quotient < 0, -1.0, 1.0)
            row = quotient.to(cache.dtype.element_ty)
        place = (slot // block_size) * block_stride + (slot % block_size) * offset_stride + head * head_stride
        tl.store(cache + place + at // pack * outer_stride + at % pack, row, mask=inside)


def write(
    rows: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    strides: tuple[int, int, int, int],
    block_size: int,
    pack: int = 1,
    scales: torch.Tensor | None = None,
    most: float = 0.0,
) -> None:
    """Writes rows [token, head, dim] into `cache`, which begins at the first element of its plane, at int64 slots.

    `strides` are those of blocks, offsets, heads and groups of `pack` elements. Negative slots write nothing. With
    `scales`, float32 [slot, head], codes are the quotients by the largest element over `most`, rounded for integers.
    """
    tokens, heads, dim = rows.shape
    if not tokens:
        return
    if scales is None:
        word = BITS[rows.element_size()]
        rows, cache = rows.view(word), cache.view(word)
    width = triton.next_power_of_2(dim)
    _write[(tokens, heads)](
        *(rows, slots, cache, scales if scales is not None else cache, rows.stride(0), *strides),
        block_size=block_size,
        heads=heads,
        dim=dim,
        pack=pack,
        most=most,
        rounds=not cache.dtype.is_floating_point,
        width=width,
        num_warps=1,
    )
