"""Parts of the prompts that models of requests propose."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kvlockstep.models.core.op import Pick

# So many earlier prompts may come again.
HISTORY = 6
# A target with pages of its own size may have room for prompts without number.
MOST_PROMPTS = 256


def all_prompts(tokens: Sequence[int], longest: int) -> list[tuple[int, ...]]:
    """Returns every prompt of 1 to `longest` tokens, short ones first; lengths up to which there are MOST_PROMPTS."""
    found: list[tuple[int, ...]] = []
    for n in range(1, longest + 1):
        if len(found) + len(tokens) ** n > MOST_PROMPTS:
            break
        found += itertools.product(tokens, repeat=n)
    return found


def length_near_block(pick: Pick, most: int, block_size: int, counts: Sequence[int]) -> int:
    """Picks a length from 1 to `most`, within a token of one of so many blocks."""
    return max(1, min(most, pick(counts) * block_size + pick((-1, 0, 0, 1))))
