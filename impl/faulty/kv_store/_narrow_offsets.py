"""The block copy kernel with offsets in too few bits: a cache of more than 2**32 words must show it."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from kvlockstep.impl.kernels import BlockCopy
from kvlockstep.impl.kv_store.far_apart import FarStore
from kvlockstep.impl.kv_store.moves import KernelMoves


@triton.jit(do_not_specialize=["source", "target", "tail", "last"])
def _copy_narrow(
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
    plane = tl.program_id(1).to(tl.int64)
    if not single:
        source = tl.load(pairs + 2 * pair)
        target = tl.load(pairs + 2 * pair + 1)
    at = chunk * words + tl.arange(0, words)
    start = (plane * origin_plane + source * origin_block + at) % wrap
    end = (plane * goal_plane + target * goal_block + at) % wrap
    inside = at < tl.where(pair == last, tail, width)
    tl.store(goal + end, tl.load(origin + start, mask=inside), mask=inside)


class _Bound:
    """The kernel with offsets modulo `wrap`, called as `kv_kernels._copy` is."""

    def __init__(self, wrap: int) -> None:
        self._wrap = wrap

    def __getitem__(self, grid: Any) -> Any:
        def launch(*arguments: Any, **constants: Any) -> None:
            _copy_narrow[grid](*arguments, **constants, wrap=self._wrap)

        return launch


class NarrowOffsets(FarStore):
    """Offsets of copied words are unsigned numbers of `bits` bits."""

    def __init__(self, *sizes: Any, bits: int, **options: Any) -> None:
        super().__init__(*sizes, kernels=True, **options)
        moves = self.store.moves
        assert isinstance(moves, KernelMoves)
        within: BlockCopy = moves._within
        within.kernel = _Bound(1 << bits)
