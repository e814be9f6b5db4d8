"""The sequences and amounts that are proposed to a radix_cache: mostly related ones, around whole pages."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Sequence

from kvlockstep.models.core.op import Pick
from kvlockstep.models.radix_cache.scope import RadixCacheScope
from kvlockstep.properties.radix_cache import Prefix


def any_sequence(
    pick: Pick, scope: RadixCacheScope, entries: Collection[Prefix], locked: Sequence[Prefix]
) -> list[int]:
    """A sequence to match: a new one, one related to an entry, or one that ends a page before a locked one."""
    if scope.exhaustive:
        return list(pick(_all_sequences(scope.tokens, scope.longest, scope.page_size)))
    size = scope.page_size
    inner = [prefix[:-size] for prefix in locked if len(prefix) > size]
    revisit = pick((True, False, False)) if inner else False
    if revisit:
        return list(pick(inner))
    fresh = pick((False, True, False, False)) if entries else True
    if fresh:
        return [pick(scope.tokens) for _ in range(max(1, _length(pick, scope.longest, size)))]
    base = list(pick(list(entries)))
    if pick((False, True)):
        base = base[: 1 + _length(pick, len(base) - 1, size)]
    return base + [pick(scope.tokens) for _ in range(_length(pick, scope.longest - len(base), size))]


def computed_sequence(
    pick: Pick, scope: RadixCacheScope, entries: Collection[Prefix], matched: Prefix, held_slots: int
) -> list[int]:
    """A sequence that begins with the match; the caller holds enough slots for the rest."""
    size = scope.page_size
    room = max(len(matched), min(scope.longest, len(matched) + held_slots))
    if scope.exhaustive:
        every = _all_sequences(scope.tokens, room, size)
        return list(pick([s for s in every if s[: len(matched)] == matched]))
    others = [p for p in entries if len(matched) < len(p) and p[: len(matched)] == matched]
    extend = pick((True, False)) if others else False
    base = list(pick(others)) if extend else list(matched)
    base = base[:room]
    return base + [pick(scope.tokens) for _ in range(_length(pick, room - len(base), size))]


def amount(pick: Pick, scope: RadixCacheScope, pages: int) -> int:
    """Tokens of 0 to one page more than there are, around multiples of the page."""
    size = scope.page_size
    if scope.exhaustive:
        amounts: list[int] = sorted({1, *range(0, (pages + 1) * size + 1, size)})
        return pick(amounts)
    k = pick([*(k for k in (2, 1, 3, pages) if 0 < k <= pages), pages + 1, 0])
    return max(0, k * size - pick((0, size - 1) if size > 1 else (0,)))


def _length(pick: Pick, most: int, page_size: int) -> int:
    """From 0 to `most`, around multiples of the page."""
    if most <= 0:
        return 0
    pages = most // page_size
    return max(0, min(most, pick((1, 2, 1, pages, 0)) * page_size + pick((0, 0, 0, 1, -1))))


@functools.cache
def _all_sequences(tokens: tuple[int, ...], longest: int, page_size: int) -> list[Prefix]:
    """Every sequence of whole pages, each also with 1 to page_size - 1 tokens behind it."""
    wholes = range(0, longest + 1, page_size)
    rests = [(n, min(page_size - 1, longest - n)) for n in wholes]
    every = ((p, most) for n, most in rests for p in itertools.product(tokens, repeat=n))
    return [p + tokens[:1] * i for p, most in every for i in range(most + 1)]
