"""The contract of block_pool: its errors, the prefix of a cached block, and the methods of a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from kvlockstep.reference.errors import ContractError

ExtraKey = int | str | tuple[int | str, ...] | None
HashFunction = Callable[[int, tuple[int, ...], ExtraKey], int]


class AlreadyCached(ContractError, ValueError):
    """The block is cached, so it cannot be cached again."""


class InUse(ContractError, RuntimeError):
    """Blocks are held, so they cannot be taken from their holders."""


class Prefix(NamedTuple):
    """The prefix of a cached block: all tokens up to its end, and the extra keys (or None) of all blocks up to it."""

    extra_keys: tuple[ExtraKey, ...]
    tokens: tuple[int, ...]


class RequestKeysTarget(Protocol):
    """The block keys of one growing request, `len` of them: one for each full block. Made by a pool, for that pool."""

    def __len__(self) -> int: ...
    def extend(self, tokens: Sequence[int]) -> None: ...


@runtime_checkable
class BlockPoolTarget(Protocol):
    """Factory `make(blocks, block_size, hash_function)`. Source: seed 002 and the pool it serves.

    `hash_function(parent, tokens, extra_key)` returns the hash of a block, given that of the block before it (0 for the
    first), its tokens and its extra key. It may be weak, so that hashes collide. None: the target's own.
    """

    @property
    def num_free(self) -> int: ...
    @property
    def num_evictable(self) -> int: ...
    @property
    def usage(self) -> float: ...
    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeysTarget: ...
    def allocate(self, n: int) -> list[int]: ...
    def touch(self, blocks: Sequence[int]) -> None: ...
    def free(self, blocks: Sequence[int]) -> None: ...
    def cache_full_blocks(self, keys: Any, table: Sequence[int], cached: int, full: int) -> None: ...
    def find_longest_prefix(self, keys: Any, limit: int | None = None) -> list[int]: ...
    def reset(self) -> None: ...
    def free_queue(self) -> list[int]: ...
    def ref_count(self, block: int) -> int: ...
    def entries(self) -> dict[Prefix, list[int]]: ...
