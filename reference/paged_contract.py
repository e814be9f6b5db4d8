"""The vocabulary of paged_cache and kv_store: what a token's KV is made of, results, errors, targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from kvlockstep.reference.contracts import ContractError, InvalidArgument
from kvlockstep.reference.kv_sizing import heads_per_rank, pages_within

POLICIES = ("lru", "fifo", "frequency")
LAYOUTS = ("layer_major", "slot_major")
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}
PAD_SLOT = -1


class UnknownSequence(ContractError, ValueError):
    """The sequence is not live."""


class SequenceLive(ContractError, ValueError):
    """The name of a new sequence is that of a live one."""


class KVShape(NamedTuple):
    """The KV of one token: K and V of `heads` x `head_dim` elements of `dtype` in each of `layers` layers."""

    layers: int
    heads: int
    head_dim: int
    dtype: str

    def check(self) -> None:
        """Raises InvalidArgument if a size is not positive or the dtype is none of ITEM_BYTES."""
        if min(self.layers, self.heads, self.head_dim) < 1 or self.dtype not in ITEM_BYTES:
            raise InvalidArgument(f"shape={self}: sizes are positive and the dtype one of {', '.join(ITEM_BYTES)}")

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's K and V in all layers."""
        return 2 * self.layers * self.heads * self.head_dim * self.item_bytes

    def shard(self, ranks: int) -> KVShape:
        """What one of `ranks` tensor-parallel ranks keeps: its share of the heads, or one head that ranks share.

        Raises InvalidArgument if heads and ranks do not divide one another.
        """
        return self._replace(heads=heads_per_rank(self.heads, ranks))


def blocks_within(budget: int, block_size: int, shape: KVShape) -> int:
    """How many blocks of `block_size` tokens fit in `budget` bytes.

    Raises InvalidArgument for a negative budget, a block size below 1 or a bad shape.
    """
    shape.check()
    return pages_within(budget, block_size * shape.token_bytes)


class Allocation(NamedTuple):
    """A new sequence: its block table, of which the first `cached` tokens lie in registered blocks."""

    cached: int
    blocks: list[int]


class Growth(NamedTuple):
    """What an append did: `blocks` joined the table, and of each of `copies` the target took the source's place.

    Copies are (source, target), to be made before the new tokens are written and before the next operation.
    """

    blocks: list[int]
    copies: list[tuple[int, int]]


class PagedStatistics(NamedTuple):
    """The state of the pool and what happened since the last reset.

    `blocks` = `free` + `cached` (registered, held by nobody) + `held`; `shared` are held by several sequences. Counted
    are blocks: `allocations` - `deallocations` = `cached` + `held`; `hits` and `misses` are the keys of allocations.
    `hit_rate` = hits / (hits + misses); `utilisation` = held / blocks; `fragmentation`, the part of the held blocks
    that no sequence fills; each 0.0 where there is nothing to divide by. `memory_bytes` are those of `cached` + `held`.
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


Rows = Sequence[Sequence[int]]


@runtime_checkable
class KVStoreTarget(Protocol):
    """Factory `make(blocks, block_size, host_blocks, shape, layout)`, `layout` one of LAYOUTS.

    Elements are bit patterns, unsigned numbers as wide as the dtype; a row is one token's `heads` x `head_dim`
    elements of K or of V in one layer, and slot = block * block_size + offset.
    """

    @property
    def memory_bytes(self) -> int: ...
    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None: ...
    def gather(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]: ...
    def gather_host(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]: ...
    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None: ...
    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None: ...
    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None: ...
    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None: ...
    def blocks_within(self, budget: int) -> int: ...
