"""The contract of paged_cache: its results, errors and methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from kvlockstep.reference.errors import ContractError

POLICIES = ("lru", "fifo", "frequency")


class UnknownSequence(ContractError, ValueError):
    """The sequence is not live."""


class SequenceLive(ContractError, ValueError):
    """The name of a new sequence is that of a live one."""


class Allocation(NamedTuple):
    """A new sequence: its block table, of which the first `cached` tokens lie in registered blocks."""

    cached: int
    blocks: list[int]


class Growth(NamedTuple):
    """Result of an append: `blocks` joined the table, and in each of `copies` the target replaced the source.

    Copies are (source, target), to be made before the new tokens are written and before the next operation.
    """

    blocks: list[int]
    copies: list[tuple[int, int]]


class PagedStatistics(NamedTuple):
    """The state of the pool and what happened since the last reset.

    `blocks` = `free` + `cached` (registered, held by nobody) + `held`; `shared` are held by several sequences. The
    counters count blocks: `allocations` - `deallocations` = `cached` + `held`; `hits` and `misses` are the keys of
    allocations. `hit_rate` = hits / (hits + misses); `utilisation` = held / blocks; `fragmentation`, the part of the
    held blocks that no sequence fills; each 0.0 where there is nothing to divide by. `memory_bytes` are those of
    `cached` + `held`.
    """

    blocks: int
    free: int
    cached: int
    held: int
    shared: int
    allocations: int
    deallocations: int
    evictions: int
    copies: int
    hits: int
    misses: int
    hit_rate: float
    utilisation: float
    fragmentation: float
    memory_bytes: int
    capacity_bytes: int


@runtime_checkable
class PagedCacheTarget(Protocol):
    """Factory `make(blocks, block_size, policy, shape)`, `policy` one of POLICIES. Source: seed 004, PagedKvCache.

    A target may have an attribute `store`, a KVStoreTarget of the same sizes, to keep the KV in.
    """

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation: ...
    def append(self, sequence: int, tokens: int = 1) -> Growth: ...
    def truncate(self, sequence: int, tokens: int) -> None: ...
    def fork(self, source: int, child: int, tokens: int | None = None) -> list[int]: ...
    def free(self, sequence: int) -> None: ...
    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int: ...
    def lookup(self, keys: Sequence[int]) -> list[int]: ...
    def evict(self, blocks: int) -> list[int]: ...
    def reset(self) -> None: ...
    def sequences(self) -> list[int]: ...
    def table(self, sequence: int) -> list[int]: ...
    def length(self, sequence: int) -> int: ...
    def registered(self) -> dict[int, int]: ...
    def free_blocks(self) -> list[int]: ...
    def idle_blocks(self) -> list[int]: ...
    def ref_count(self, block: int) -> int: ...
    def statistics(self) -> PagedStatistics: ...
