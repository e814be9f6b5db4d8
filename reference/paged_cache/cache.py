"""paged_cache: sequences with block tables over shared blocks, registered prefixes, eviction. Source: seed 004.

A key stands for the whole prefix up to the end of one full block, so a registered block serves every sequence with its
key.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.reference.errors import InvalidArgument, OutOfSlots, UnknownSlot
from kvlockstep.reference.kv.shape import KVShape, blocks_for
from kvlockstep.reference.paged_cache.contract import (
    POLICIES,
    Allocation,
    Growth,
    PagedStatistics,
    SequenceLive,
    UnknownSequence,
)
from kvlockstep.reference.paged_cache.pool import PagedPool


class PagedCache:
    """`blocks` blocks of `block_size` tokens with KV of `shape`; `policy`, one of POLICIES: see PagedPool.

    Raises InvalidArgument.
    """

    def __init__(self, blocks: int, block_size: int, policy: str, shape: KVShape) -> None:
        shape.check()
        if blocks < 0 or block_size < 1 or policy not in POLICIES:
            raise InvalidArgument(f"blocks={blocks}, block_size={block_size}, policy={policy!r}")
        self._blocks, self._size, self._policy = blocks, block_size, policy
        self._block_bytes = block_size * shape.token_bytes
        self.reset()

    def reset(self) -> None:
        """Ends every sequence and forgets everything registered and counted."""
        self._pool = PagedPool(self._blocks, self._policy)
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        """A new sequence of `tokens` tokens, whose first blocks are those that lookup(keys) finds.

        Raises SequenceLive, InvalidArgument if `tokens` is negative or less than the keys stand for, OutOfSlots.
        """
        self._check_new("allocate", sequence)
        if tokens < 0 or tokens < len(keys) * self._size:
            raise InvalidArgument(f"allocate: tokens={tokens} with {len(keys)} keys for blocks of {self._size}")
        hit = self.lookup(keys)
        need = self._blocks_for(tokens) - len(hit)
        self._pool.require("allocate", need, hit)
        self._pool.hold(hit)
        self._pool.counts["hits"] += len(hit)
        self._pool.counts["misses"] += len(keys) - len(hit)
        self._tables[sequence] = hit + self._pool.take(len(hit), need)
        self._lengths[sequence] = tokens
        return Allocation(len(hit) * self._size, self.table(sequence))

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        """Appends `tokens` tokens. If the last block has room but is frozen, a copy replaces it.

        Raises UnknownSequence, InvalidArgument if `tokens` is not positive, OutOfSlots.
        """
        length, table = self._find("append", sequence)
        if tokens < 1:
            raise InvalidArgument(f"append: tokens={tokens}, at least one is appended")
        copied = table[-1:] if length % self._size and self._pool.frozen(table[-1]) else []
        kept = len(table) - len(copied)
        need = self._blocks_for(length + tokens) - kept
        self._pool.require("append", need)
        new = self._pool.take(kept, need)
        self._pool.release(copied)
        self._pool.counts["copies"] += len(copied)
        self._tables[sequence] = table[:kept] + new
        self._lengths[sequence] = length + tokens
        return Growth(new[len(copied) :], list(zip(copied, new, strict=False)))

    def truncate(self, sequence: int, tokens: int) -> None:
        """Only the first `tokens` tokens stay. Raises UnknownSequence, InvalidArgument if there are not as many."""
        length, table = self._find("truncate", sequence)
        if not 0 <= tokens <= length:
            raise InvalidArgument(f"truncate: tokens={tokens} of {length}")
        kept = self._blocks_for(tokens)
        self._pool.release(table[kept:])
        self._tables[sequence] = table[:kept]
        self._lengths[sequence] = tokens

    def fork(self, source: int, child: int, tokens: int | None = None) -> list[int]:
        """A new sequence `child` shares the first `tokens` tokens of `source`, by default all; returns its table.

        Raises UnknownSequence, SequenceLive, InvalidArgument if `source` has fewer tokens.
        """
        length, table = self._find("fork", source)
        self._check_new("fork", child)
        tokens = length if tokens is None else tokens
        if not 0 <= tokens <= length:
            raise InvalidArgument(f"fork: tokens={tokens} of {length}")
        shared = table[: self._blocks_for(tokens)]
        self._pool.hold(shared)
        self._tables[child] = shared
        self._lengths[child] = tokens
        return self.table(child)

    def free(self, sequence: int) -> None:
        """Ends a sequence; what it registered stays until it is evicted. Raises UnknownSequence."""
        _, table = self._find("free", sequence)
        self._pool.release(table)
        del self._tables[sequence], self._lengths[sequence]

    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int:
        """Registers the blocks from index `first` under `keys`; a key that has a block keeps it. Returns their number.

        Raises UnknownSequence, InvalidArgument if a block is not full or has another key, or a key comes twice.
        """
        length, table = self._find("register", sequence)
        if first < 0 or (first + len(keys)) * self._size > length or len(set(keys)) < len(keys):
            raise InvalidArgument(f"register: {len(keys)} different keys from block {first} on, of {length} tokens")
        named = {key: table[first + i] for i, key in enumerate(keys)}
        for key, block in self._pool.registered.items():
            if block in named.values() and named.get(key) != block:
                raise InvalidArgument(f"register: block {block} has the key {key} already")
        new = {key: block for key, block in named.items() if key not in self._pool.registered}
        self._pool.registered |= new
        return len(new)

    def lookup(self, keys: Sequence[int]) -> list[int]:
        """The blocks of the longest run of leading keys, each registered at its own index. Changes nothing."""
        return self._pool.lookup(keys)

    def evict(self, blocks: int) -> list[int]:
        """Frees `blocks` idle blocks, in the order of the policy.

        Raises InvalidArgument if the number is negative, OutOfSlots if fewer are idle.
        """
        idle = self.idle_blocks()
        if blocks < 0:
            raise InvalidArgument(f"evict: blocks={blocks} is negative")
        if blocks > len(idle):
            raise OutOfSlots(f"evict: blocks={blocks}, but only {len(idle)} are idle")
        for block in idle[:blocks]:
            self._pool.evict(block)
        return idle[:blocks]

    def sequences(self) -> list[int]:
        """The live sequences, in ascending order."""
        return sorted(self._tables)

    def table(self, sequence: int) -> list[int]:
        """The blocks of a sequence. Raises UnknownSequence."""
        return list(self._find("table", sequence)[1])

    def length(self, sequence: int) -> int:
        """The tokens of a sequence. Raises UnknownSequence."""
        return self._find("length", sequence)[0]

    def registered(self) -> dict[int, int]:
        """The block of every registered key."""
        return dict(self._pool.registered)

    def free_blocks(self) -> list[int]:
        """The free blocks, the next to be taken first."""
        return list(self._pool.free)

    def idle_blocks(self) -> list[int]:
        """The registered blocks that no sequence holds, the next to be evicted first."""
        return self._pool.idle()

    def ref_count(self, block: int) -> int:
        """Returns the number of sequences that hold the block. Raises UnknownSlot."""
        if not 0 <= block < self._blocks:
            raise UnknownSlot(f"ref_count: block={block} is not one of 0..{self._blocks - 1}")
        return self._pool.blocks[block].holders

    def statistics(self) -> PagedStatistics:
        """See PagedStatistics."""
        filled: dict[int, int] = {}
        for sequence, table in self._tables.items():
            for i, block in enumerate(table):
                tokens = min(self._size, self._lengths[sequence] - i * self._size)
                filled[block] = max(filled.get(block, 0), tokens)
        count, free, held = self._pool.counts, len(self._pool.free), len(filled)
        queried, room = count["hits"] + count["misses"], held * self._size
        return PagedStatistics(
            blocks=self._blocks,
            free=free,
            cached=self._blocks - free - held,
            held=held,
            shared=sum(block.holders > 1 for block in self._pool.blocks),
            allocations=count["allocations"],
            deallocations=count["deallocations"],
            evictions=count["evictions"],
            copies=count["copies"],
            hits=count["hits"],
            misses=count["misses"],
            hit_rate=count["hits"] / queried if queried else 0.0,
            utilisation=held / self._blocks if self._blocks else 0.0,
            fragmentation=(room - sum(filled.values())) / room if room else 0.0,
            memory_bytes=(self._blocks - free) * self._block_bytes,
            capacity_bytes=self._blocks * self._block_bytes,
        )

    def _blocks_for(self, tokens: int) -> int:
        return blocks_for(tokens, self._size)

    def _check_new(self, operation: str, sequence: int) -> None:
        if sequence in self._tables:
            raise SequenceLive(f"{operation}: sequence {sequence} is live already")

    def _find(self, operation: str, sequence: int) -> tuple[int, list[int]]:
        if sequence not in self._tables:
            raise UnknownSequence(f"{operation}: sequence {sequence} is not live")
        return self._lengths[sequence], self._tables[sequence]
