"""Triton kernels that move, stamp and verify KV as bits. Without a GPU Triton's interpreter runs them, on CPU tensors.

Everything here takes tensors of words: integers as wide as the rows allow, so that NaNs and signs of zeros stay. Every
offset is computed in 64 bits. Sizes and strides are in words.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read where a kernel is declared

import triton
import triton.language as tl

STAMP_FACTOR = tl.constexpr(0x1E3779B97F4A7C15)
PLANE_FACTOR = tl.constexpr(0x5851F42D4C957F2D)
WORD_FACTOR = tl.constexpr(0x2545F4914F6CDD1D)
COPY_WORDS = 256
TILE_WORDS = 512
WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class Blocks(NamedTuple):
    """Blocks in a tensor of words, and the strides of planes and of blocks in it."""

    words: torch.Tensor
    plane_stride: int
    block_stride: int


class Rows(NamedTuple):
    """The rows of one token in a tensor of words: strides of layers, from K to V, and of slots; `row` words each."""

    words: torch.Tensor
    layer_stride: int
    value_stride: int
    slot_stride: int
    row: int


def word_bytes(*sizes: int) -> int:
    """Bytes of the widest word that divides all these sizes in bytes."""
    return next(size for size in WORDS if not any(n % size for n in sizes))


def as_words(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """A contiguous tensor as words of so many bytes, in one dimension; copied if it does not begin at such a word."""
    if tensor.data_ptr() % size:
        tensor = tensor.clone()
    return tensor.view(-1).view(WORDS[size])


@triton.jit(do_not_specialize=["source", "target", "tail", "last"])
def _copy(
    origin,
    goal,
    pairs,
    source: tl.int64,
    target: tl.int64,
    origin_plane,
    origin_block,
    goal_plane,
    goal_block,
    width,
    tail,
    last,
    chunks: tl.constexpr,
    single: tl.constexpr,
    whole: tl.constexpr,
    words: tl.constexpr,
    wrap: tl.constexpr,
):
    chunk = tl.program_id(0) % chunks
    pair = tl.program_id(0) // chunks
    plane = tl.program_id(1).to(tl.int64)  # outermost: what runs at once lies in few
    if not single:
        source = tl.load(pairs + 2 * pair)
        target = tl.load(pairs + 2 * pair + 1)
    start = plane * origin_plane + source * origin_block
    end = plane * goal_plane + target * goal_block
    at = chunk * words + tl.arange(0, words)
    if whole:  # noqa: SIM108  (a branch of the compiler)
        inside = at < width
    else:
        inside = at < tl.where(pair == last, tail, width)
    if wrap:
        found = tl.load(origin + (start + at) % wrap, mask=inside)
        tl.store(goal + (end + at) % wrap, found, mask=inside)
    else:
        # With the sources evicted last it is 2 % faster than with no hint, see docs/gpu.md.
        found = tl.load(origin + start + at, mask=inside, eviction_policy="evict_last")
        tl.store(goal + end + at, found, mask=inside)


class BlockCopy:
    """Copies `width` words in every plane of a block of `origin` to one of `goal`.

    The first launches compile; later ones skip the launcher that looks every argument over, which on a GPU takes longer
    than the copy of a block.
    """

    # A test of far offsets has them computed modulo this number; 0 is the full 64 bits.
    wrap = 0

    def __init__(self, origin: Blocks, goal: Blocks, planes: int, width: int) -> None:
        self._words = min(COPY_WORDS, triton.next_power_of_2(width))
        self._chunks = triton.cdiv(width, self._words)
        self._origin, self._goal, self._planes, self._width = origin, goal, planes, width
        self._strides = (*origin[1:], *goal[1:], width)
        self._compiled: dict[tuple[bool, bool], Any] = {}

    def one(self, source: int, target: int, tail: int = 0) -> None:
        """Copies one block, of it only `tail` words unless that is 0; its numbers go with the launch."""
        self._launch(1, self._origin.words, source, target, tail, True)

    def many(self, pairs: torch.Tensor, tail: int = 0) -> None:
        """Copies blocks by (source, target) pairs, int64 [pair, 2] on the device; of the last one `tail` words.

        One launch; no target may be the source of another pair.
        """
        self._launch(len(pairs), pairs, 0, 0, tail, False)

    def _launch(self, count: int, pairs: torch.Tensor, source: int, target: int, tail: int, single: bool) -> None:
        grid = (count * self._chunks, self._planes, 1)
        arguments = (
            *(self._origin.words, self._goal.words, pairs, source, target, *self._strides),
            *(tail or self._width, count - 1),
        )
        whole = not tail  # with a tail the compiler cannot prove that the words come in pairs
        compiled = self._compiled.get((single, whole))
        if compiled is not None:
            compiled[grid](*arguments, self._chunks, single, whole, self._words, self.wrap)
            return
        constants = {
            "chunks": self._chunks,
            "single": single,
            "whole": whole,
            "words": self._words,
            "wrap": self.wrap,
        }
        launched = _copy[grid](*arguments, **constants, num_warps=1)
        if launched is not None:  # the interpreter compiles nothing
            self._compiled[single, whole] = launched


@triton.jit(do_not_specialize=["tokens", "layer"])
def _move_rows(
    kv,
    keys,
    values,
    slots,
    tokens,
    layer,
    layer_stride,
    value_stride,
    slot_stride,
    row,
    into_kv: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
):
    token = tl.program_id(0) * tile + tl.arange(0, tile)
    slot = tl.load(slots + token, mask=token < tokens, other=-1)
    at = tl.arange(0, width)
    if into_kv:  # noqa: SIM108  (a branch of the compiler)
        moved = slot >= 0
    else:
        moved = token < tokens
    inside = moved[:, None] & (at < row)[None, :]
    dense = token.to(tl.int64)[:, None] * row + at[None, :]
    place = layer.to(tl.int64) * layer_stride + slot[:, None] * slot_stride + at[None, :]
    if into_kv:
        tl.store(kv + place, tl.load(keys + dense, mask=inside), mask=inside)
        tl.store(kv + value_stride + place, tl.load(values + dense, mask=inside), mask=inside)
    else:
        tl.store(keys + dense, tl.load(kv + place, mask=inside), mask=inside)
        tl.store(values + dense, tl.load(kv + value_stride + place, mask=inside), mask=inside)


def scatter(kv: Rows, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Stores row i of `keys` and `values`, words [token, row], in slots[i] (int64) of a layer; not where it is < 0."""
    _rows(kv, layer, slots, keys, values, into_kv=True)


def gather(kv: Rows, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Fills `keys` and `values`, words [token, row], with the rows of these slots (int64) of a layer."""
    _rows(kv, layer, slots, keys, values, into_kv=False)


def _rows(kv: Rows, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, into_kv: bool) -> None:
    tile, width = _tile(kv.row)
    if len(slots):
        grid = (triton.cdiv(len(slots), tile),)
        _move_rows[grid](
            *(kv.words, keys, values, slots, len(slots), layer, *kv[1:]),
            into_kv=into_kv,
            tile=tile,
            width=width,
            num_warps=2,
        )


@triton.jit(do_not_specialize=["tokens"])
def _stamp(
    kv,
    slots,
    stamps,
    wrong,
    tokens,
    layer_stride,
    value_stride,
    slot_stride,
    row,
    verify: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
):
    token = tl.program_id(0) * tile + tl.arange(0, tile)
    plane = tl.program_id(1).to(tl.int64)
    here = token < tokens
    slot = tl.load(slots + token, mask=here, other=0)
    stamp = tl.load(stamps + token, mask=here, other=0)
    at = tl.arange(0, width)
    inside = here[:, None] & (at < row)[None, :]
    origin = kv + (plane // 2) * layer_stride + (plane % 2) * value_stride
    place = slot[:, None] * slot_stride + at[None, :]
    word = (stamp * STAMP_FACTOR + (plane + 1) * PLANE_FACTOR)[:, None] ^ (at.to(tl.int64) * WORD_FACTOR)[None, :]
    word = word.to(kv.dtype.element_ty)
    if verify:
        found = tl.load(origin + place, mask=inside)
        count = wrong + token[:, None] + tl.full((tile, width), 0, tl.int32)
        tl.atomic_add(count, tl.full((tile, width), 1, tl.int32), mask=inside & (found != word))
    else:
        tl.store(origin + place, word, mask=inside)


def stamp_fill(kv: Rows, layers: int, slots: torch.Tensor, stamps: torch.Tensor) -> None:
    """Writes stamps[i] (int64) to K and V of slots[i] (int64) in every layer, in each plane and word another form."""
    _stamp_rows(kv, layers, slots, stamps, stamps, verify=False)


def stamp_verify(kv: Rows, layers: int, slots: torch.Tensor, stamps: torch.Tensor) -> torch.Tensor:
    """Counts the words of slots[i] that are not those of stamps[i]: int32 [slot], on the device."""
    wrong = torch.zeros(len(slots), dtype=torch.int32, device=slots.device)
    _stamp_rows(kv, layers, slots, stamps, wrong, verify=True)
    return wrong


def _stamp_rows(
    kv: Rows, layers: int, slots: torch.Tensor, stamps: torch.Tensor, wrong: torch.Tensor, verify: bool
) -> None:
    tile, width = _tile(kv.row)
    if len(slots):
        grid = (triton.cdiv(len(slots), tile), 2 * layers)
        _stamp[grid](
            *(kv.words, slots, stamps, wrong, len(slots), *kv[1:]),
            verify=verify,
            tile=tile,
            width=width,
            num_warps=2,
        )


def _tile(row: int) -> tuple[int, int]:
    """Rows and words that one program takes."""
    width: Any = triton.next_power_of_2(row)
    return max(1, TILE_WORDS // width), width


@triton.jit
def _sum(a, b):
    return a + b


@triton.jit(do_not_specialize=["requests"])
def _acquire(stack, top, wanted, taken, status, requests, most: tl.constexpr, count: tl.constexpr):
    request = tl.arange(0, count)
    here = request < requests
    want = tl.load(wanted + request, mask=here, other=0)
    bad = (want < 0) | (want > most)
    asked = tl.where(bad, 0, want)
    after = tl.associative_scan(asked, 0, _sum)
    free = tl.load(top)
    fits = after <= free
    served = fits & here & (asked > 0)
    tl.store(status + request, tl.where(served, 1, tl.where(want == 0, 0, 2)), mask=here)
    for i in range(most):
        mine = served & (i < asked)
        tl.store(taken + request * most + i, tl.load(stack + free - after + i, mask=mine, other=-1), mask=here)
    following = tl.load(wanted + request + 1, mask=request + 1 < requests, other=0)
    following = tl.where((following < 0) | (following > most), 0, following)
    final = here & fits & ((request == requests - 1) | (after + following > free))
    tl.debug_barrier()  # every thread has read the old top
    tl.store(top + tl.full((count,), 0, tl.int32), free - after, mask=final)


def acquire(
    stack: torch.Tensor, top: torch.Tensor, wanted: torch.Tensor, taken: torch.Tensor, status: torch.Tensor
) -> None:
    """Pops blocks for many requests at once, in their order; may be captured.

    `stack` int32 [block], of which the first `top` (int32 [1]) are free; `wanted` int32 [request]; `taken`
    int32 [request, most] gets the blocks, then -1; `status` int32 [request] gets 0 (none wanted), 1 (served) or 2
    (refused). From the first request on that does not fit, all are refused; so is one that wants a negative number or
    more than `most`, and the others go on. Up to 32,768 requests.
    """
    if requests := len(wanted):
        count = triton.next_power_of_2(requests)
        _acquire[(1,)](stack, top, wanted, taken, status, requests, most=taken.shape[1], count=count)


@triton.jit(do_not_specialize=["patience"])
def _gate(flag, patience):
    shut = tl.load(flag, volatile=True) == 0
    while shut & (patience > 0):
        patience -= 1
        shut = tl.load(flag, volatile=True) == 0


def gate(flag: torch.Tensor, patience: int = 2_000_000) -> None:
    """Holds up the current stream until the host sets `flag` (int32 [1], pinned), or after so many looks at it."""
    _gate[(1,)](flag, patience, num_warps=1)
