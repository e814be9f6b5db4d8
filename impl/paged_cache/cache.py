"""paged_cache at O(1) per block that an operation touches; eviction O(1) by recency, O(log n) by age or frequency."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvlockstep.impl.paged_cache.queues import RankQueue, RecencyQueue
from kvlockstep.reference.errors import InvalidArgument, OutOfSlots, UnknownSlot
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.paged_cache.contract import (
    POLICIES,
    Allocation,
    Growth,
    PagedStatistics,
    SequenceLive,
    UnknownSequence,
)

if TYPE_CHECKING:
    from kvlockstep.impl.kv_store import KVStore


class _Sequence:
    __slots__ = ("length", "table")

    def __init__(self, table: list[int], length: int) -> None:
        self.table = table
        self.length = length


class PagedCache:
    """`blocks` blocks of `block_size` tokens with KV of `shape`. Meets reference.paged_contract.PagedCacheTarget.

    Every statistic is kept up to date by what changes it. `_marks` has, of each block that some holder fills only in
    part, how many such holders there are (under 0) and how many fill how much of it: the room wasted is that behind the
    fullest holder. With `tensors` the KV lies in `store`, a KVStore on `device` in `layout` with `host_blocks` host
    blocks. Raises InvalidArgument.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        policy: str,
        shape: KVShape,
        *,
        tensors: bool = False,
        device: str = "cpu",
        layout: str = "layer_major",
        host_blocks: int = 0,
    ) -> None:
        shape.check()
        if blocks < 0 or block_size < 1 or policy not in POLICIES:
            raise InvalidArgument(f"blocks={blocks}, block_size={block_size}, policy={policy!r}")
        self._blocks = blocks
        self._size = block_size
        self._policy = policy
        self._block_bytes = block_size * shape.token_bytes
        self.store: KVStore | None = None
        if tensors:
            from kvlockstep.impl.kv_store import KVStore  # noqa: PLC0415  torch is an extra

            self.store = KVStore(blocks, block_size, host_blocks, shape, layout, device=device)
        self.reset()

    def reset(self) -> None:
        """Ends every sequence and forgets everything registered and counted."""
        self._live: dict[int, _Sequence] = {}
        self._free = deque(range(self._blocks))
        self._idle: RecencyQueue | RankQueue = RecencyQueue() if self._policy == "lru" else RankQueue()
        self._registered: dict[int, int] = {}
        self._key: list[int | None] = [None] * self._blocks
        self._holders = [0] * self._blocks
        self._depth = [0] * self._blocks
        self._age = [0] * self._blocks
        self._uses = [0] * self._blocks
        self._marks: dict[int, dict[int, int]] = {}
        self._shared = self._unfilled = self._releases = 0
        self._allocations = self._evictions = self._copies = self._hits = self._misses = 0

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        """A new sequence of `tokens` tokens, whose first blocks are those that lookup(keys) finds.

        Raises SequenceLive, InvalidArgument if `tokens` is negative or less than the keys stand for, OutOfSlots.
        """
        if sequence in self._live:
            raise SequenceLive(f"allocate: sequence {sequence} is live already")
        if tokens < 0 or tokens < len(keys) * self._size:
            raise InvalidArgument(f"allocate: tokens={tokens} with {len(keys)} keys for blocks of {self._size}")
        table = self.lookup(keys)
        hit = len(table)
        need = -(-tokens // self._size) - hit
        holders = self._holders
        self._require("allocate", need, sum(not holders[block] for block in table))
        self._hold(table)
        self._hits += hit
        self._misses += len(keys) - hit
        table += self._take(hit, need)
        self._live[sequence] = _Sequence(table, tokens)
        if tail := tokens % self._size:
            self._mark(table[-1], tail)
        return Allocation(hit * self._size, table.copy())

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        """`tokens` more tokens. A last block that has room, but may not be written, gives way to a copy of it.

        Raises UnknownSequence, InvalidArgument if `tokens` is not positive, OutOfSlots.
        """
        grown = self._find("append", sequence)
        if tokens < 1:
            raise InvalidArgument(f"append: tokens={tokens}, at least one is appended")
        table, size = grown.table, self._size
        tail, length = grown.length % size, grown.length + tokens
        last = table[-1] if tail else -1
        frozen = tail > 0 and self._frozen(last)
        need = -(-length // size) - len(table) + frozen
        if need:
            self._require("append", need, 0)
        if tail:
            self._unmark(last, tail)
        copies: list[tuple[int, int]] = []
        new = self._take(len(table) - frozen, need) if need else []
        if frozen:
            copies = [(last, new.pop(0))]
            table[-1] = copies[0][1]
            self._copies += 1
            self._release([last])
        table += new
        grown.length = length
        if tail := length % size:
            self._mark(table[-1], tail)
        return Growth(new, copies)

    def truncate(self, sequence: int, tokens: int) -> None:
        """Only the first `tokens` tokens stay. Raises UnknownSequence, InvalidArgument if there are not as many."""
        cut = self._find("truncate", sequence)
        if not 0 <= tokens <= cut.length:
            raise InvalidArgument(f"truncate: tokens={tokens} of {cut.length}")
        self._cut(cut, tokens)

    def fork(self, source: int, child: int, tokens: int | None = None) -> list[int]:
        """A new sequence `child` shares the first `tokens` tokens of `source`, by default all; returns its table.

        Raises UnknownSequence, SequenceLive, InvalidArgument if `source` has fewer tokens.
        """
        parent = self._find("fork", source)
        if child in self._live:
            raise SequenceLive(f"fork: sequence {child} is live already")
        tokens = parent.length if tokens is None else tokens
        if not 0 <= tokens <= parent.length:
            raise InvalidArgument(f"fork: tokens={tokens} of {parent.length}")
        table = parent.table[: -(-tokens // self._size)]
        self._hold(table)
        self._live[child] = _Sequence(table, tokens)
        if tail := tokens % self._size:
            self._mark(table[-1], tail)
        return table.copy()

    def free(self, sequence: int) -> None:
        """Ends a sequence; what it registered stays until it is evicted. Raises UnknownSequence."""
        self._cut(self._find("free", sequence), 0)
        del self._live[sequence]

    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int:
        """Registers the blocks from index `first` on under `keys`; a key that has a block keeps it. Answers how many.

        Raises UnknownSequence, InvalidArgument if a block is not full or has another key, or a key comes twice.
        """
        owner = self._find("register", sequence)
        stop = first + len(keys)
        if first < 0 or stop * self._size > owner.length or len(set(keys)) < len(keys):
            raise InvalidArgument(
                f"register: {len(keys)} different keys from block {first} on, of {owner.length} tokens"
            )
        blocks = owner.table[first:stop]
        for key, block in zip(keys, blocks, strict=True):
            if self._key[block] not in (None, key):
                raise InvalidArgument(f"register: block {block} has the key {self._key[block]} already")
        count = 0
        for key, block in zip(keys, blocks, strict=True):
            if key not in self._registered:
                self._registered[key] = block
                self._key[block] = key
                count += 1
        return count

    def lookup(self, keys: Sequence[int]) -> list[int]:
        """The blocks of the longest run of leading keys, each registered at its own index. Changes nothing."""
        hit: list[int] = []
        for depth, key in enumerate(keys):
            block = self._registered.get(key)
            if block is None or self._depth[block] != depth:
                break
            hit.append(block)
        return hit

    def evict(self, blocks: int) -> list[int]:
        """Frees so many idle blocks, in the order of the policy.

        Raises InvalidArgument if the number is negative, OutOfSlots if fewer are idle.
        """
        if blocks < 0:
            raise InvalidArgument(f"evict: blocks={blocks} is negative")
        if blocks > len(self._idle):
            raise OutOfSlots(f"evict: blocks={blocks}, but only {len(self._idle)} are idle")
        victims = [self._evict() for _ in range(blocks)]
        self._free.extend(victims)
        return victims

    def sequences(self) -> list[int]:
        """The live sequences, in ascending order."""
        return sorted(self._live)

    def table(self, sequence: int) -> list[int]:
        """The blocks of a sequence. Raises UnknownSequence."""
        return self._find("table", sequence).table.copy()

    def length(self, sequence: int) -> int:
        """The tokens of a sequence. Raises UnknownSequence."""
        return self._find("length", sequence).length

    def registered(self) -> dict[int, int]:
        """The block of every registered key."""
        return self._registered.copy()

    def free_blocks(self) -> list[int]:
        """The free blocks, the next to be taken first."""
        return list(self._free)

    def idle_blocks(self) -> list[int]:
        """The registered blocks that no sequence holds, the next to be evicted first."""
        return self._idle.order()

    def ref_count(self, block: int) -> int:
        """Returns the number of sequences that hold the block. Raises UnknownSlot."""
        if not 0 <= block < self._blocks:
            raise UnknownSlot(f"ref_count: block={block} is not one of 0..{self._blocks - 1}")
        return self._holders[block]

    def must_copy(self, sequence: int) -> bool:
        """True if an append to the sequence copies its last block first. Raises UnknownSequence."""
        found = self._find("must_copy", sequence)
        return found.length % self._size > 0 and self._frozen(found.table[-1])

    @property
    def num_free(self) -> int:
        """Number of free blocks."""
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Number of idle blocks."""
        return len(self._idle)

    def statistics(self) -> PagedStatistics:
        """See PagedStatistics; O(1)."""
        free, cached = len(self._free), len(self._idle)
        used = self._blocks - free
        held = used - cached
        queried, room = self._hits + self._misses, held * self._size
        return PagedStatistics(
            blocks=self._blocks,
            free=free,
            cached=cached,
            held=held,
            shared=self._shared,
            allocations=self._allocations,
            deallocations=self._allocations - used,
            evictions=self._evictions,
            copies=self._copies,
            hits=self._hits,
            misses=self._misses,
            hit_rate=self._hits / queried if queried else 0.0,
            utilisation=held / self._blocks if self._blocks else 0.0,
            fragmentation=self._unfilled / room if room else 0.0,
            memory_bytes=used * self._block_bytes,
            capacity_bytes=self._blocks * self._block_bytes,
        )

    def _find(self, operation: str, sequence: int) -> _Sequence:
        found = self._live.get(sequence)
        if found is None:
            raise UnknownSequence(f"{operation}: sequence {sequence} is not live")
        return found

    def _frozen(self, block: int) -> bool:
        return self._holders[block] > 1 or self._key[block] is not None

    def _require(self, operation: str, n: int, idle_hits: int) -> None:
        idle = len(self._idle) - idle_hits
        if n > len(self._free) + idle:
            raise OutOfSlots(f"{operation}: {n} blocks, but {len(self._free)} are free and {idle} idle")

    def _take(self, depth: int, n: int) -> list[int]:
        """Takes `n` free or evicted blocks for the indices from `depth` on; the deepest counts as the oldest."""
        free, taken = self._free, []
        self._allocations += n
        for i in range(n):
            block = free.popleft() if free else self._evict()
            self._holders[block] = self._uses[block] = 1
            self._depth[block] = depth + i
            self._age[block] = self._allocations - i
            taken.append(block)
        return taken

    def _hold(self, blocks: Sequence[int]) -> None:
        """One more holder of these blocks, which fills them all until it marks one."""
        holders = self._holders
        for block in blocks:
            if block in self._marks:
                self._unfilled -= self._waste(block)
            holders[block] += 1
            self._uses[block] += 1
            if holders[block] == 1:
                self._idle.remove(block)
            elif holders[block] == 2:
                self._shared += 1

    def _release(self, blocks: Sequence[int]) -> None:
        """Gives blocks up, last one first, by a holder that has unmarked what it filled in part."""
        holders = self._holders
        for block in reversed(blocks):
            self._releases += 1
            holders[block] -= 1
            if not holders[block]:
                if self._key[block] is None:
                    self._free.append(block)
                else:
                    self._idle.add(block, self._rank(block))
            elif holders[block] == 1:
                self._shared -= 1
            if block in self._marks:
                self._unfilled += self._waste(block)

    def _cut(self, cut: _Sequence, tokens: int) -> None:
        size, table = self._size, cut.table
        if tail := cut.length % size:
            self._unmark(table[-1], tail)
        kept = -(-tokens // size)
        self._release(table[kept:])
        del table[kept:]
        cut.length = tokens
        if tail := tokens % size:
            self._mark(table[-1], tail)

    def _evict(self) -> int:
        """Takes the key from the first idle block, which is the caller's then."""
        block = self._idle.pop()
        key = self._key[block]
        assert key is not None
        del self._registered[key]
        self._key[block] = None
        self._evictions += 1
        return block

    def _rank(self, block: int) -> tuple[int, int]:
        return (self._age[block], 0) if self._policy == "fifo" else (self._uses[block], self._releases)

    def _mark(self, block: int, tail: int) -> None:
        """One holder of the block fills only `tail` tokens of it."""
        marks = self._marks.get(block)
        if marks is None:
            marks = self._marks[block] = {0: 0}
        else:
            self._unfilled -= self._waste(block)
        marks[0] += 1
        marks[tail] = marks.get(tail, 0) + 1
        self._unfilled += self._waste(block)

    def _unmark(self, block: int, tail: int) -> None:
        marks = self._marks[block]
        self._unfilled -= self._waste(block)
        marks[0] -= 1
        if not marks[0]:
            del self._marks[block]
            return
        marks[tail] -= 1
        if not marks[tail]:
            del marks[tail]
        self._unfilled += self._waste(block)

    def _waste(self, block: int) -> int:
        """The room behind the fullest holder of a marked block."""
        marks = self._marks[block]
        return self._size - max(marks) if marks[0] == self._holders[block] else 0
