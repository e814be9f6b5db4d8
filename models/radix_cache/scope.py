"""The sizes in which a radix_cache is tried."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvlockstep.models.core.model import Scope


@dataclass(frozen=True)
class RadixCacheScope(Scope):
    """Sequences of up to `longest` tokens from the vocabulary `tokens`, `handles` handles at a time, named h0, h1, ...

    `locks`: how often each may be locked. `buffers`: tokens and slots are passed as arrays of 64-bit integers, not as
    lists. With `exhaustive` every sequence is proposed, else mostly related ones, lengths around multiples of a page.
    """

    pages: int
    page_size: int
    longest: int
    handles: int
    tokens: tuple[int, ...] = (1, 2)
    locks: int = 2
    buffers: bool = True
    exhaustive: bool = False


def _scopes() -> Iterable[RadixCacheScope]:
    sizes = [(4, 1, 5, 2), (3, 2, 7, 2), (6, 1, 7, 3), (8, 2, 13, 3), (5, 4, 18, 2), (12, 1, 9, 4), (4, 16, 50, 2)]
    sizes += [(10, 4, 26, 3), (1, 1, 2, 1), (20, 2, 24, 4), (6, 16, 66, 3), (2, 2, 5, 1), (24, 1, 16, 4), (0, 1, 1, 1)]
    vocabularies = ((1, 2), (1, 2, 3), (0, 257, 2**31 - 1), (1,))
    for i, (pages, page_size, longest, handles) in enumerate(sizes):
        for j, tokens in enumerate((vocabularies[i % 3], vocabularies[(i + 1) % 4])[: pages // 2 or 1]):
            yield RadixCacheScope(pages, page_size, longest, handles, tokens, buffers=(i + j) % 3 > 0)


SCOPES = tuple(_scopes())
SMALL_SCOPES = (
    RadixCacheScope(2, 1, 2, 2, (1,), exhaustive=True),
    RadixCacheScope(3, 1, 3, 1, locks=1, exhaustive=True),
    RadixCacheScope(2, 2, 5, 1, (1,), exhaustive=True),
    RadixCacheScope(2, 2, 3, 1, locks=1, exhaustive=True),
)
