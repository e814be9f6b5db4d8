"""block_pool: reference-counted blocks, and a cache of the full ones by their keys. Source: seed 002 and its pool.

A block that nobody holds waits in the free queue and keeps what it caches until it is handed out again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvlockstep.reference.block_pool.contract import AlreadyCached, ExtraKey, HashFunction, InUse, Prefix
from kvlockstep.reference.block_pool.keys import BlockKey, RequestKeys, block_hash
from kvlockstep.reference.errors import InvalidArgument, NotCached, NotHeld, OutOfSlots, UnknownSlot


class BlockPool:
    """`blocks` blocks of `block_size` tokens. The free queue is in eviction order: its head is handed out first.

    Raises InvalidArgument if `blocks` is negative or `block_size` less than 1.
    """

    _queue: list[int]
    _refs: list[int]
    _cached: dict[int, BlockKey]

    def __init__(self, blocks: int, block_size: int, hash_function: HashFunction | None = None) -> None:
        if blocks < 0 or block_size < 1:
            raise InvalidArgument(f"blocks={blocks}, block_size={block_size}: at least 0 and 1")
        self._blocks = blocks
        self._block_size = block_size
        self._hash = hash_function or block_hash
        self._clear()

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._queue)

    @property
    def num_evictable(self) -> int:
        """Free blocks that cache something."""
        return sum(block in self._cached for block in self._queue)

    @property
    def usage(self) -> float:
        """The share of blocks that are held, 0 to 1."""
        return 1 - len(self._queue) / self._blocks if self._blocks else 0.0

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        """The block keys of a new request, which has no tokens yet."""
        return RequestKeys(self._block_size, extra_keys, self._hash)

    def allocate(self, n: int) -> list[int]:
        """Takes `n` blocks off the head of the free queue; they forget what they cached and have one holder each.

        Raises InvalidArgument if n is negative, OutOfSlots if fewer are free.
        """
        if n < 0:
            raise InvalidArgument(f"allocate: n={n} is negative")
        if n > len(self._queue):
            raise OutOfSlots(f"allocate: n={n}, {len(self._queue)} blocks are free")
        taken, self._queue = self._queue[:n], self._queue[n:]
        for block in taken:
            self._forget(block)
            self._refs[block] = 1
        return taken

    def touch(self, blocks: Sequence[int]) -> None:
        """Adds one holder to each of the blocks, for example after a hit; those in the free queue leave it.

        Raises UnknownSlot, InvalidArgument if a block is named twice, NotCached if it is free and caches nothing.
        """
        self._check("touch", blocks, self._check_worth_holding)
        for block in blocks:
            if not self._refs[block]:
                self._queue.remove(block)
            self._refs[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Removes one holder from each of the blocks, given as in a request's table.

        A block without a holder goes to the tail of the queue if it caches something, else to the head, since nothing
        is lost with it. In both cases the last block of the table is evicted first. Raises UnknownSlot, InvalidArgument
        if a block is named twice, NotHeld.
        """
        self._check("free", blocks, self._check_held)
        for block in blocks:
            self._refs[block] -= 1
        idle = [block for block in reversed(blocks) if not self._refs[block]]
        blank = [block for block in idle if block not in self._cached]
        self._queue = blank + self._queue + [block for block in idle if block in self._cached]

    def cache_full_blocks(self, keys: RequestKeys, table: Sequence[int], cached: int, full: int) -> None:
        """Caches the blocks `table[cached:full]` as those of the request; its first `cached` blocks are cached already.

        Several blocks may cache the same prefix. Raises InvalidArgument unless 0 <= cached <= full, and the request has
        that many keys and blocks; for the block before the first: UnknownSlot, NotCached if it does not cache the
        request up to its end; for the others: UnknownSlot, InvalidArgument if named twice, NotHeld, AlreadyCached.
        """
        if not 0 <= cached <= full <= min(len(table), len(keys)):
            raise InvalidArgument(f"cache_full_blocks: {cached=}, {full=}, {len(table)} blocks, {len(keys)} keys")
        if cached:
            parent = keys.key(cached - 1)
            self._check("cache_full_blocks", [table[cached - 1]], lambda block: self._check_caches(block, parent))
        self._check("cache_full_blocks", table[cached:full], self._check_cacheable)
        for i in range(cached, full):
            self._cached[table[i]] = keys.key(i)

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        """Returns the blocks that cache the longest prefix of the request, at most `limit` of them. Changes nothing.

        Of several blocks with the same prefix it returns the one cached first. Raises InvalidArgument if `limit` is
        negative.
        """
        if limit is not None and limit < 0:
            raise InvalidArgument(f"find_longest_prefix: limit={limit} is negative")
        hits: list[int] = []
        for i in range(len(keys))[:limit]:
            block = self._find(keys.key(i))
            if block is None:
                break
            hits.append(block)
        return hits

    def reset(self) -> None:
        """Forgets everything cached and queues the blocks by number. Raises InUse if any is held."""
        if len(self._queue) < self._blocks:
            raise InUse(f"reset: {self._blocks - len(self._queue)} blocks are held")
        self._clear()

    def free_queue(self) -> list[int]:
        """The free blocks, the next to be handed out first."""
        return self._queue.copy()

    def ref_count(self, block: int) -> int:
        """The number of holders of a block. Raises UnknownSlot."""
        self._check("ref_count", [block], lambda _: None)
        return self._refs[block]

    def entries(self) -> dict[Prefix, list[int]]:
        """Every cached prefix with the blocks that cache it, in the order in which they were cached."""
        blocks: dict[Prefix, list[int]] = {}
        for block, key in self._cached.items():
            blocks.setdefault(key.prefix, []).append(block)
        return blocks

    def _clear(self) -> None:
        self._queue = list(range(self._blocks))
        self._refs = [0] * self._blocks
        self._cached = {}

    def _find(self, wanted: BlockKey) -> int | None:
        for block, key in self._cached.items():
            if key.hash == wanted.hash and self._verified(key, wanted):
                return block
        return None

    def _verified(self, key: BlockKey, wanted: BlockKey) -> bool:
        return key.prefix == wanted.prefix

    def _forget(self, block: int) -> None:
        self._cached.pop(block, None)

    def _check(self, operation: str, blocks: Sequence[int], check: Callable[[int], None]) -> None:
        for i, block in enumerate(blocks):
            if not 0 <= block < self._blocks:
                raise UnknownSlot(f"{operation}: block {block} is not one of 0..{self._blocks - 1}")
            if block in blocks[:i]:
                raise InvalidArgument(f"{operation}: block {block} is named twice")
            check(block)

    def _check_worth_holding(self, block: int) -> None:
        if not self._refs[block] and block not in self._cached:
            raise NotCached(f"block {block} is free and caches nothing")

    def _check_held(self, block: int) -> None:
        if not self._refs[block]:
            raise NotHeld(f"block {block} is free")

    def _check_cacheable(self, block: int) -> None:
        self._check_held(block)
        if block in self._cached:
            raise AlreadyCached(f"block {block} is cached")

    def _check_caches(self, block: int, key: BlockKey) -> None:
        if block not in self._cached or self._cached[block].prefix != key.prefix:
            raise NotCached(f"block {block} does not cache the request up to there, {list(key.prefix.tokens)}")
