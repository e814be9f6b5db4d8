"""The sizes of kv_manager's episodes: pools, vocabularies that tell keys apart, orders of questions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any, Self

from kvlockstep.models.core.model import Scope
from kvlockstep.models.kv_manager.questions import ASK_ORDERS

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


class Mode(Enum):
    """Kind of the episodes of a scope. A trace header has a flag for every mode but VARIED, named by its value.

    VARIED: a rich choice of prompts that repeat, extend, shorten others and branch off them, with every command.
    EXHAUSTIVE: every prompt up to `max_tokens`, for exploration.
    MANY: long, distinct prompts that come back, and little else: thousands of cached blocks, so many that two
    short keys collide, which shows if a manager trusts them.
    LONG: episodes without a reset, long enough for small leaks to use up the pool and for counters to overflow.
    FORKS: what follows a fork in the middle of a block is mostly one of forks.SCRIPTS.
    """

    VARIED = "varied"
    EXHAUSTIVE = "exhaustive"
    MANY = "many"
    LONG = "long"
    FORKS = "forks"


FLAGS = tuple(mode.value for mode in Mode if mode is not Mode.VARIED)


@dataclass(frozen=True)
class KVScope(Scope):
    """`live` requests at most at a time, with prompts of up to `max_tokens` of the vocabulary `tokens`, under `keys`.

    `ask` is the order of the judge's questions, one of ASK_ORDERS.
    """

    blocks: int
    block_size: int
    live: int
    max_tokens: int
    _: KW_ONLY
    tokens: tuple[int, ...] = (1, 2)
    keys: tuple[int | None, ...] = (None,)
    ask: str = "avail"
    mode: Mode = Mode.VARIED

    @property
    def exhaustive(self) -> bool:
        return self.mode is Mode.EXHAUSTIVE

    def shown(self) -> dict[str, Any]:
        return {"blocks": self.blocks, "block_size": self.block_size, "ask": self.ask}

    @property
    def stretch(self) -> int:
        return 5 if self.mode is Mode.LONG else 1

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        return {name: kind for name, kind in super().parameters().items() if name != "mode"} | dict.fromkeys(
            FLAGS, bool
        )

    def to_json(self) -> dict[str, Any]:
        values = super().to_json()
        mode = values.pop("mode")
        return values | {flag: flag == mode.value for flag in FLAGS}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        raised = [flag for flag in FLAGS if values.get(flag)]
        if len(raised) > 1:
            raise ValueError(f"the scope is {' and '.join(raised)}; it can only be one of them")
        plain = {name: value for name, value in values.items() if name not in FLAGS}
        return super().from_json(plain | {"mode": Mode(raised[0]) if raised else Mode.VARIED})


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
                words, names, ask = next(vocabularies), next(keys), next(asks)
                yield KVScope(blocks, size, live, longest, tokens=words, keys=names, ask=ask)
        # The second time round nothing goes together with what it went with before.
        next(vocabularies), next(asks)
    for ask in ASK_ORDERS:
        yield KVScope(96, 1, 4, 90, tokens=(1, 2, 3), ask=ask)
        yield KVScope(80, 2, 3, 70, keys=(None, 7), ask=ask)
        yield KVScope(24, 2, 6, 6, ask=ask, mode=Mode.FORKS)
        yield KVScope(20, 4, 4, 12, ask=ask, mode=Mode.FORKS)
    yield KVScope(6, 8, 3, 40, keys=(None, 1), ask="slots")
    yield KVScope(8, 8, 3, 48, keys=(None, 1), ask="free_now")
    yield KVScope(5, 32, 3, 64, mode=Mode.FORKS)
    yield KVScope(18, 16, 1, 272, tokens=(1, 2, 3), ask="late")
    yield KVScope(40, 2, 12, 3, tokens=(1, 2, 3))
    yield KVScope(24, 2, 9, 24, mode=Mode.LONG)
    yield KVScope(2048, 1, 4, 64, tokens=tuple(range(1, 17)), ask="late", mode=Mode.MANY)


# One request at a time, or one token, leaves the budget for longer sequences than two of each do.
SMALL_SCOPES = (
    KVScope(2, 1, 1, 2, mode=Mode.EXHAUSTIVE),
    KVScope(2, 1, 2, 2, keys=(None, 1), mode=Mode.EXHAUSTIVE),
    KVScope(2, 1, 1, 2, tokens=(1,), keys=ALIKE_KEYS, mode=Mode.EXHAUSTIVE),
    KVScope(2, 2, 1, 3, tokens=(1,), mode=Mode.EXHAUSTIVE),
    KVScope(2, 2, 1, 3, mode=Mode.EXHAUSTIVE),
    KVScope(3, 2, 2, 3, mode=Mode.EXHAUSTIVE),
    KVScope(3, 2, 2, 5, mode=Mode.EXHAUSTIVE),
)
# What windows and states go through in few operations: one word, and prompts longer than a window.
GROUP_SCOPES = (
    KVScope(4, 1, 1, 5, tokens=(1,), mode=Mode.EXHAUSTIVE),
    KVScope(3, 2, 1, 6, tokens=(1,), mode=Mode.EXHAUSTIVE),
    KVScope(3, 2, 2, 6, tokens=(1,), mode=Mode.EXHAUSTIVE),
)
# One block is stored, evicted and loaded again, in every order in which transfers can end.
TIER_SCOPES = (KVScope(2, 1, 1, 2, tokens=(1,), mode=Mode.EXHAUSTIVE),)
