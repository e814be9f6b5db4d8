"""The contract of radix_cache: its errors, results and methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from kvlockstep.reference.errors import ContractError


class StaleHandle(ContractError, RuntimeError):
    """The pages of the handle have been evicted or reset since, all or some."""


class NotLocked(ContractError, ValueError):
    """The handle has no lock left to take back."""


class RadixMatch(NamedTuple):
    """A prefix hit: the first `length` tokens have their KV in `slots`, safe to use while `handle` is locked."""

    length: int
    slots: Any
    handle: Any


class RadixSizes(NamedTuple):
    """Slots that are free, cached and not locked, cached and locked. The others are held by the caller."""

    free: int
    evictable: int
    protected: int


@runtime_checkable
class RadixCacheTarget(Protocol):
    """Factory `make(pages, page_size)`. Source: seed 001, RadixCacheManager and CacheManager.

    Tokens and slots come as any sequence of ints, or as a buffer of 64-bit ones. Arguments and results belong to the
    caller, who may change them after the call. Slots are returned as any sequence of ints.
    """

    def match_prefix(self, tokens: Sequence[int]) -> RadixMatch: ...
    def match_request(self, tokens: Sequence[int]) -> RadixMatch: ...
    def lock(self, handle: Any) -> None: ...
    def unlock(self, handle: Any) -> None: ...
    def insert_prefix(self, tokens: Sequence[int], slots: Sequence[int]) -> int: ...
    def cache_unfinished(self, handle: Any, tokens: Sequence[int], slots: Sequence[int]) -> RadixMatch: ...
    def cache_finished(self, handle: Any, tokens: Sequence[int], slots: Sequence[int]) -> int: ...
    def allocate(self, n: int) -> Sequence[int]: ...
    def free(self, slots: Sequence[int]) -> None: ...
    def evict(self, n: int) -> Sequence[int]: ...
    def reset(self) -> None: ...
    def sizes(self) -> RadixSizes: ...
    def free_slots(self) -> Sequence[int]: ...
    def eviction_order(self) -> Sequence[int]: ...
    def entries(self) -> dict[tuple[int, ...], tuple[tuple[int, ...], int]]: ...
    def render(self) -> str: ...
