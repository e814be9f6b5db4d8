"""The block copy kernel with offsets in too few bits: a cache of more than 2**32 words must show it."""

from __future__ import annotations

from typing import Any

from kvlockstep.impl.kv_store.far_apart import FarStore
from kvlockstep.impl.kv_store.moves import KernelMoves


class NarrowOffsets(FarStore):
    """Offsets of copied words are unsigned numbers of `bits` bits."""

    def __init__(self, *sizes: Any, bits: int, **options: Any) -> None:
        super().__init__(*sizes, kernels=True, **options)
        moves = self.store.moves
        assert isinstance(moves, KernelMoves)
        moves.within.wrap = 1 << bits
