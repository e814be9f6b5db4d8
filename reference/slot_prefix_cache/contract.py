"""What slot_prefix_cache asks of a target. Source: seed 000, PrefixCacheManager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class Match(NamedTuple):
    """A prefix hit: `length` tokens, whose KV lies in `slot` as of `version`. A miss is `Match(0, -1, 0)`."""

    length: int
    slot: int
    version: int


MISS = Match(0, -1, 0)


@runtime_checkable
class SlotPrefixCacheTarget(Protocol):
    """Factory `make(capacity, slots, positions)`. Source: seed 000, PrefixCacheManager."""

    def insert(self, tokens: Sequence[int], slot: int, version: int, pinned: bool = False) -> None: ...
    def find(self, tokens: Sequence[int]) -> Match: ...
    def pin(self, tokens: Sequence[int]) -> None: ...
    def release(self, tokens: Sequence[int]) -> None: ...
    def reuse(self, slot: int, length: int) -> None: ...
    def copy_kv(self, tokens: Sequence[int], target: int) -> int: ...
    def write_kv(self, slot: int, start: int, stamps: Sequence[int]) -> None: ...
    def read_kv(self, slot: int, length: int) -> list[int]: ...
    def entries(self) -> dict[tuple[int, ...], tuple[int, int]]: ...
