"""Scopes of block_pool: the sizes of a pool, the requests that come, and how blocks are hashed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvlockstep.models.core.model import Scope
from kvlockstep.reference.block_pool.contract import ExtraKey, HashFunction


def one_bit(parent: int, tokens: tuple[int, ...], extra_key: ExtraKey) -> int:
    """A hash that meets itself all the time."""
    return (parent + sum(tokens) + (extra_key is not None)) & 1


def python_hash(parent: int, tokens: tuple[int, ...], extra_key: ExtraKey) -> int:
    """Python's own, for which -1 and -2 are one number."""
    return hash((parent, tokens, extra_key))


HASHES: dict[str, HashFunction | None] = {"own": None, "one_bit": one_bit, "python": python_hash}


@dataclass(frozen=True)
class BlockPoolScope(Scope):
    """Requests of at most `longest` blocks and a rest over the vocabulary `tokens`; a block has at most `refs` holders.

    `extra_keys` are the sequences of extra keys that requests have; `hash` is one of HASHES. With `exhaustive` every
    request is looked up instead of mostly related ones, and one that computes stands beside one that only looks up.
    """

    blocks: int
    block_size: int
    tokens: tuple[int, ...] = (1, 2)
    longest: int = 3
    extra_keys: tuple[tuple[ExtraKey, ...], ...] = ((),)
    hash: str = "own"
    refs: int = 3
    exhaustive: bool = False

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> BlockPoolScope:
        keys = tuple(tuple(tuple(k) if isinstance(k, list) else k for k in keys) for keys in values["extra_keys"])
        return super().from_json(values | {"extra_keys": keys})


def _scopes() -> Iterable[BlockPoolScope]:
    vocabularies = ((1, 2), (-1, -2), (2**31 - 1, 0, -(2**31)))
    identities: tuple[tuple[tuple[ExtraKey, ...], ...], ...] = (
        ((), (-1,), (-2,)),
        ((),),
        ((), ("adapter",), (None, "image"), (("adapter", 7), "image")),
    )
    for i, (blocks, block_size) in enumerate([(3, 1), (4, 1), (3, 2), (2, 1), (5, 2), (6, 4)]):
        for j, name in enumerate(HASHES):
            keys = identities[(i // 2 + j) % 3]
            yield BlockPoolScope(blocks, block_size, vocabularies[(i + j) % 3], 2 + i % 3, keys, name)
    yield BlockPoolScope(0, 1)
    yield BlockPoolScope(1, 1, hash="one_bit")
    yield BlockPoolScope(7, 16, (1,))
    yield BlockPoolScope(24, 1, longest=8, hash="one_bit")


SCOPES = tuple(_scopes())
SMALL_SCOPES = (
    BlockPoolScope(0, 1, longest=1, exhaustive=True),
    BlockPoolScope(2, 2, (1,), 2, ((), ("a",), (None, "a")), refs=2, exhaustive=True),
    BlockPoolScope(3, 1, (-1, -2), 2, hash="one_bit", refs=2, exhaustive=True),
)
