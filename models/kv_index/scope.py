"""The sizes of kv_index's episodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from kvlockstep.models.core.model import Scope
from kvlockstep.models.kv_index.questions import Question

# Token ids that are one when they are cut to so many bits, and one that is falsy.
VOCABULARIES = ((1, 2), (1,), (0, 1, 2), (1, 257, 65537, 2**31 - 1), (1, 11, 2))
# 0 is falsy as None is; 1 and 2 are also tokens; -1 and -2 have one hash in Python.
EXTRA_KEYS: tuple[tuple[int | None, ...], ...] = ((None,), (None, 0), (None, 1, 2), (-1, -2), (None, 1))


@dataclass(frozen=True)
class KVIndexScope(Scope):
    """`workers` workers, and sequences of up to `length` blocks of the vocabulary `tokens`, under `keys`.

    With `losses` events may be lost; without them every answer is exact. With `repeats` events may arrive again; then
    the last event is a part of the state. With `exhaustive` every sequence is proposed,
    and asked for after each operation.
    """

    block_size: int
    workers: int
    length: int
    _: KW_ONLY
    tokens: tuple[int, ...] = (1, 2)
    keys: tuple[int | None, ...] = (None,)
    losses: bool = False
    repeats: bool = True
    exhaustive: bool = False

    def shown(self) -> dict[str, Any]:
        return {"block_size": self.block_size, "workers": self.workers}

    def questions(self) -> Iterable[Question]:
        """Every question of an exhaustive scope."""
        if self.exhaustive:
            for n, key in itertools.product(range(self.block_size, self.length * self.block_size + 1), self.keys):
                yield from ((tokens, key) for tokens in itertools.product(self.tokens, repeat=n))


def scopes() -> Iterable[KVIndexScope]:
    """The scopes of random episodes: half of them lose events."""
    words, keys = itertools.cycle(VOCABULARIES), itertools.cycle((*EXTRA_KEYS, (None, 7)))
    sizes = ((1, 2, 4), (2, 2, 3), (1, 3, 6), (4, 2, 4), (1, 1, 4), (2, 3, 5), (16, 2, 3), (3, 2, 4))
    for losses in (False, True, False, True):
        for size in sizes:
            yield KVIndexScope(*size, tokens=next(words), keys=next(keys), losses=losses)


SMALL = (
    KVIndexScope(1, 1, 3, tokens=(1,), exhaustive=True),
    KVIndexScope(2, 1, 1, tokens=(1,), keys=(None, 0), exhaustive=True),
    KVIndexScope(1, 2, 1, tokens=(1,), exhaustive=True),
    KVIndexScope(1, 1, 2, tokens=(1,), losses=True, exhaustive=True),
    KVIndexScope(1, 1, 2, repeats=False, exhaustive=True),
)
