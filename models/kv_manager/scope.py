"""The sizes of kv_manager's episodes: pools, vocabularies that tell keys apart, orders of questions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvlockstep.models.core.model import Scope
from kvlockstep.models.kv_manager.judge import ASK_ORDERS

# Token ids that are one when they are cut to so many bits, cast to a float, taken modulo the size of a vocabulary,
# clamped, added up with a multiplier, or joined as text.
CUT = (1, 257, 65537, 2**31 - 1, 0, 2), (7, 7 + 2**20, 7 + 2**24, 7 + 2**30)
CAST = (2**24, 2**24 + 1, 2048, 2049), (256, 257)
MODULO = (3, 1003, 32003), (3, 50260, 128259, 151939), (3, 1000, 1012, 1000006, 1000000010)
CLAMPED = (2**31 - 1, 2**31 - 2), (32768, 32769, 40000)
SUMMED = (1, 2, 33)
ALIKE = (1, 11, 0)
# The keys 1 and 65537 are one in 8 and in 16 bits; -1 and 0 are what others write for no key; 1 and 2 are also tokens;
# -1 and 1 differ by their sign, and Python hashes -1 and -2 to one number.
EXTRA_KEYS: tuple[tuple[int | None, ...], ...] = (
    (None, 0, 7),
    (None,),
    (None, 1, 2),
    (None, -1, 0),
    (None, 1, 65537),
    (-1, 1, -2),
    (None, 0, 1, 2, 3, 4, 5),
)
# Few enough for every sequence of two requests: 0 is falsy as None is, -1 and 1 differ by their sign, -1 and -2 not in
# their hash.
ALIKE_KEYS = (None, 0, 1, -1, -2)


@dataclass(frozen=True)
class KVScope(Scope):
    """`live` requests at most at a time, over a vocabulary `tokens`, under `keys`. `ask`: see KVJudge.

    `max_tokens` bounds a prompt; with `exhaustive` every prompt up to it is proposed, otherwise a rich choice of
    repeated, extended, shortened and branching ones. With `many` the prompts are long, distinct and come back, and
    little else happens: thousands of cached blocks, among which the keys of two are one if they are short and trusted.
    `long` episodes, without a reset, use up what leaks in small parts and let counters run over. With `forks` what
    follows a fork in the middle of a block is mostly one of kv_forks.AFTER_FORK.
    """

    blocks: int
    block_size: int
    live: int
    max_tokens: int
    tokens: tuple[int, ...] = (1, 2)
    keys: tuple[int | None, ...] = (None,)
    ask: str = "avail"
    exhaustive: bool = False
    many: bool = False
    long: bool = False
    forks: bool = False

    def shown(self) -> dict[str, Any]:
        return {"blocks": self.blocks, "block_size": self.block_size, "ask": self.ask}

    @property
    def stretch(self) -> int:
        return 5 if self.long else 1


def scopes() -> Iterable[KVScope]:
    large = itertools.cycle((*CUT, *CAST, *MODULO, *CLAMPED, SUMMED))
    vocabularies = (next(large) if i % 2 else ((1, 2), (1, 2), ALIKE)[i // 2 % 3] for i in itertools.count())
    keys = itertools.cycle(EXTRA_KEYS)
    asks = itertools.cycle(ASK_ORDERS)
    sizes = [(3, 1), (3, 2), (4, 2), (6, 2), (4, 4), (6, 4), (8, 1), (12, 2), (5, 16), (24, 4), (10, 1), (16, 2)]
    for _ in range(2):
        for i, (blocks, size) in enumerate(sizes):
            for live in (2, 4) if i % 2 else (2, 3):
                longest = blocks * size + size
                yield KVScope(blocks, size, live, longest, next(vocabularies), next(keys), next(asks))
        # The second time round nothing goes together with what it went with before.
        next(vocabularies), next(asks)
    for ask in ASK_ORDERS:
        yield KVScope(96, 1, 4, 90, (1, 2, 3), (None,), ask)
        yield KVScope(80, 2, 3, 70, (1, 2), (None, 7), ask)
        yield KVScope(24, 2, 6, 6, (1, 2), (None,), ask, forks=True)
        yield KVScope(20, 4, 4, 12, (1, 2), (None,), ask, forks=True)
    yield KVScope(6, 8, 3, 40, (1, 2), (None, 1), "slots")
    yield KVScope(8, 8, 3, 48, (1, 2), (None, 1), "free_now")
    yield KVScope(5, 32, 3, 64, (1, 2), (None,), "avail", forks=True)
    yield KVScope(18, 16, 1, 272, (1, 2, 3), (None,), "late")
    yield KVScope(40, 2, 12, 3, (1, 2, 3), (None,), "avail")
    yield KVScope(24, 2, 9, 24, long=True)
    yield KVScope(2048, 1, 4, 64, tuple(range(1, 17)), (None,), "late", many=True)
