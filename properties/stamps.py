"""Stamps for caches of prefixes: a number in the place of a token's KV, which depends on all tokens before it too."""

from __future__ import annotations

import functools

STAMPS = 2**61 - 1
"""Every stamp is below."""


@functools.lru_cache(maxsize=4_096)
def stamps(tokens: tuple[int, ...]) -> list[int]:
    """The stamps of a sequence: each depends on its token and on all before it. Not to be changed."""
    out = []
    stamp = 0
    for token in tokens:
        stamp = ((stamp + 1) * 1_000_003 + token) % STAMPS
        out.append(stamp)
    return out
