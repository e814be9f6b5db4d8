"""Block keys: the names of the full blocks of a request. Source: seed 002, hash_request_tokens.

The key of a block covers its own tokens and extra key and, through the block before it, those of every block before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from kvlockstep.reference.block_pool.contract import ExtraKey, HashFunction, Prefix
from kvlockstep.reference.errors import InvalidArgument


def block_hash(parent: int, tokens: tuple[int, ...], extra_key: ExtraKey) -> int:
    """64 bits of SHA-256."""
    return int.from_bytes(hashlib.sha256(repr((parent, tokens, extra_key)).encode()).digest()[:8], "big")


class BlockKey(NamedTuple):
    """The key of a full block: lookups compare `hash` first, then `prefix`."""

    hash: int
    prefix: Prefix


class RequestKeys:
    """The keys of a request that grows: one for each full block, its hash computed once.

    `extra_keys[i]` (an adapter, a salt, an image; None or missing: nothing) enters the key of block i, and so the keys
    of all blocks behind it.
    """

    def __init__(self, block_size: int, extra_keys: Sequence[ExtraKey], hash_function: HashFunction) -> None:
        self._block_size = block_size
        self._extra_keys = tuple(extra_keys)
        self._hash = hash_function
        self._tokens: list[int] = []
        self.hashes: list[int] = []

    def __len__(self) -> int:
        return len(self.hashes)

    def extend(self, tokens: Sequence[int]) -> None:
        """More tokens are known. Raises InvalidArgument if one is not an integer of 32 bits."""
        if not all(-(2**31) <= token < 2**31 for token in tokens):
            raise InvalidArgument("extend: a token does not fit into 32 bits")
        self._tokens += tokens
        size = self._block_size
        for block in range(len(self), len(self._tokens) // size):
            own = tuple(self._tokens[block * size : (block + 1) * size])
            parent = self.hashes[-1] if self.hashes else 0
            self.hashes.append(self._hash(parent, own, self._extra_key(block)))

    def key(self, block: int) -> BlockKey:
        """The key of a block, counted from 0."""
        extra_keys = tuple(self._extra_key(i) for i in range(block + 1))
        return BlockKey(self.hashes[block], Prefix(extra_keys, tuple(self._tokens[: (block + 1) * self._block_size])))

    def _extra_key(self, block: int) -> ExtraKey:
        return self._extra_keys[block] if block < len(self._extra_keys) else None
