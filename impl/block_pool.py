"""block_pool on flat lists: a stack of blank blocks, a free queue of cached ones, a hash index of interned prefixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvlockstep.impl.block_keys import RequestKeys
from kvlockstep.impl.free_queue import FreeQueue
from kvlockstep.reference.block_pool_contract import AlreadyCached, ExtraKey, HashFunction, InUse, Prefix
from kvlockstep.reference.contracts import InvalidArgument, NotCached, NotHeld, OutOfSlots, UnknownSlot

CACHED = 1 << 29


class CachedPrefix:
    """A prefix that `blocks` cache, the one cached first at first, or that only longer ones build on if there are none.

    Two of equal tokens, extra key and parent never coexist, so identity proves the whole prefix. `tokens` are those of
    the last block; `children` counts the prefixes one block longer; `next` has the same hash.
    """

    __slots__ = ("blocks", "children", "extra_key", "hash", "next", "parent", "tokens")

    def __init__(self, hash: int, tokens: bytes, extra_key: ExtraKey, parent: CachedPrefix | None) -> None:
        self.hash = hash
        self.tokens = tokens
        self.extra_key = extra_key
        self.parent = parent
        self.children = 0
        self.blocks: list[int] = []
        self.next: CachedPrefix | None = None


class BlockPool:
    """Meets reference.block_pool_contract.BlockPoolTarget.

    Nobody asks by name for a free block that caches nothing, so these are a plain stack. They come before the cached
    ones, of which a hit may take any out of the middle: a FreeQueue. `_state` has the holders of each block, plus CACHED.
    """

    def __init__(self, blocks: int, block_size: int, hash_function: HashFunction | None = None) -> None:
        if blocks < 0 or block_size < 1:
            raise InvalidArgument(f"blocks={blocks}, block_size={block_size}: at least 0 and 1")
        self._blocks = blocks
        self._block_size = block_size
        self._hash = hash_function
        self._clear()

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._blank) + len(self._idle)

    @property
    def num_evictable(self) -> int:
        """Free blocks that cache something."""
        return len(self._idle)

    @property
    def usage(self) -> float:
        """The share of blocks that are held, 0 to 1."""
        return 1 - self.num_free / self._blocks if self._blocks else 0.0

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        """The block keys of a new request, which has no tokens yet."""
        return RequestKeys(self._block_size, extra_keys, self._hash)

    def allocate(self, n: int) -> list[int]:
        """Takes `n` blocks off the head of the free queue, each with one holder. Raises InvalidArgument, OutOfSlots."""
        blank = self._blank
        if 0 <= n <= len(blank):
            taken = blank[: -n - 1 : -1]
            del blank[len(blank) - n :]
        else:
            taken = self._evict_too(n)
        state = self._state
        for block in taken:
            state[block] = 1
        return taken

    def touch(self, blocks: Sequence[int]) -> None:
        """One more holder for each of the blocks. Raises UnknownSlot, InvalidArgument, NotCached."""
        state = self._state
        if not (self._are_distinct(blocks) and all([state[block] for block in blocks])):
            self._check("touch", blocks, self._check_worth_holding)
        idle = [block for block in blocks if state[block] == CACHED]
        for block in blocks:
            state[block] += 1
        if idle:
            self._idle.remove(idle)

    def free(self, blocks: Sequence[int]) -> None:
        """One holder less for each of the blocks. Raises UnknownSlot, InvalidArgument, NotHeld."""
        state = self._state
        done = 0
        try:
            for done, block in enumerate(blocks):  # noqa: B007
                if block < 0 or state[block] != 1:
                    break
                state[block] = 0
            else:
                self._blank += blocks
                return
        except IndexError:
            pass
        for block in blocks[:done]:
            state[block] = 1
        self._free_any(blocks)

    def cache_full_blocks(self, keys: RequestKeys, table: Sequence[int], cached: int, full: int) -> None:
        """Caches `table[cached:full]` as those blocks of the request, whose first `cached` are cached.

        Raises InvalidArgument, UnknownSlot, NotCached, NotHeld, AlreadyCached.
        """
        if not 0 <= cached <= full <= min(len(table), len(keys)):
            raise InvalidArgument(f"cache_full_blocks: {cached=}, {full=}, {len(table)} blocks, {len(keys)} keys")
        parent = self._cached_as(keys, table[cached - 1], cached) if cached else None
        blocks = table[cached:full]
        self._check("cache_full_blocks", blocks, self._check_cacheable)
        for i, block in enumerate(blocks, cached):
            parent = self._intern(keys, i, parent)
            parent.blocks.append(block)
            self._prefixes[block] = parent
            self._state[block] += CACHED
        keys.verified = (parent, full)

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        """The blocks that cache the longest prefix of the request, at most `limit` of them. Raises InvalidArgument."""
        if limit is not None and limit < 0:
            raise InvalidArgument(f"find_longest_prefix: limit={limit} is negative")
        hits: list[int] = []
        parent = None
        for i in range(len(keys))[:limit]:
            prefix = self._find(keys, i, parent)
            if prefix is None or not prefix.blocks:
                break
            hits.append(prefix.blocks[0])
            parent = prefix
        keys.verified = (parent, len(hits))
        return hits

    def reset(self) -> None:
        """Forgets everything cached; the queue is in the order of the block numbers. Raises InUse."""
        if self.num_free < self._blocks:
            raise InUse(f"reset: {self._blocks - self.num_free} blocks are held")
        self._clear()

    def free_queue(self) -> list[int]:
        """The free blocks, the next to be handed out first."""
        return [*reversed(self._blank), *self._idle]

    def ref_counts(self) -> list[int]:
        """The number of holders of every block."""
        return [state % CACHED for state in self._state]

    def entries(self) -> dict[Prefix, list[int]]:
        """Every cached prefix with the blocks that cache it, in the order in which they were cached."""
        prefixes = {prefix for prefix in self._prefixes if prefix is not None}
        return {_whole(prefix): prefix.blocks.copy() for prefix in prefixes}

    def _clear(self) -> None:
        self._blank = list(range(self._blocks - 1, -1, -1))
        self._idle = FreeQueue()
        self._state = [0] * self._blocks
        self._prefixes: list[CachedPrefix | None] = [None] * self._blocks
        self._index: dict[int, CachedPrefix] = {}

    def _evict_too(self, n: int) -> list[int]:
        """All blank blocks, and as many cached ones as are missing."""
        if n < 0:
            raise InvalidArgument(f"allocate: n={n} is negative")
        if n > self.num_free:
            raise OutOfSlots(f"allocate: n={n}, {self.num_free} blocks are free")
        evicted = self._idle.pop(n - len(self._blank))
        taken = self._blank[::-1] + evicted
        self._blank.clear()
        for block in evicted:
            self._forget(block)
        return taken

    def _free_any(self, blocks: Sequence[int]) -> None:
        state = self._state
        if not (self._are_distinct(blocks) and all([state[block] % CACHED for block in blocks])):
            self._check("free", blocks, self._check_held)
        idle = []
        for block in blocks:
            left = state[block] = state[block] - 1
            if not left:
                self._blank.append(block)
            elif left == CACHED:
                idle.append(block)
        self._idle.append(reversed(idle))

    def _find(self, keys: RequestKeys, i: int, parent: CachedPrefix | None) -> CachedPrefix | None:
        """The prefix that is `parent` and block `i` of the request."""
        prefix = self._index.get(keys.hashes[i])
        if prefix is None:
            return None
        tokens, extra_key = keys.tokens(i, i + 1), keys.extra_key(i)
        while prefix is not None:
            if prefix.parent is parent and prefix.tokens == tokens and prefix.extra_key == extra_key:
                return prefix
            prefix = prefix.next
        return None

    def _intern(self, keys: RequestKeys, i: int, parent: CachedPrefix | None) -> CachedPrefix:
        prefix = self._find(keys, i, parent)
        if prefix is None:
            key = keys.hashes[i]
            prefix = CachedPrefix(key, keys.tokens(i, i + 1), keys.extra_key(i), parent)
            prefix.next = self._index.get(key)
            self._index[key] = prefix
            if parent is not None:
                parent.children += 1
        return prefix

    def _forget(self, block: int) -> None:
        prefix = self._prefixes[block]
        assert prefix is not None
        self._prefixes[block] = None
        prefix.blocks.remove(block)
        while prefix is not None and not prefix.blocks and not prefix.children:
            self._unlink(prefix)
            prefix = prefix.parent
            if prefix is not None:
                prefix.children -= 1

    def _unlink(self, prefix: CachedPrefix) -> None:
        other = self._index[prefix.hash]
        if other is not prefix:
            while other.next is not prefix:
                assert other.next is not None
                other = other.next
            other.next = prefix.next
        elif prefix.next is not None:
            self._index[prefix.hash] = prefix.next
        else:
            del self._index[prefix.hash]

    def _cached_as(self, keys: RequestKeys, block: int, count: int) -> CachedPrefix:
        """The prefix of `block`, if it is that of the request's first `count` blocks. Raises UnknownSlot, NotCached."""
        self._check("cache_full_blocks", [block], lambda _: None)
        prefix = self._prefixes[block]
        node, i = prefix, count
        while (node, i) != keys.verified and i and node is not None and _is_block(node, keys, i - 1):
            node, i = node.parent, i - 1
        if prefix is None or ((node, i) != keys.verified and (node, i) != (None, 0)):
            raise NotCached(f"block {block} does not cache the first {count} blocks of the request")
        return prefix

    def _are_distinct(self, blocks: Sequence[int]) -> bool:
        return not blocks or (min(blocks) >= 0 and max(blocks) < self._blocks and len(set(blocks)) == len(blocks))

    def _check(self, operation: str, blocks: Sequence[int], check: Callable[[int], None]) -> None:
        seen = set()
        for block in blocks:
            if not 0 <= block < self._blocks:
                raise UnknownSlot(f"{operation}: block {block} is not one of 0..{self._blocks - 1}")
            if block in seen:
                raise InvalidArgument(f"{operation}: block {block} is named twice")
            seen.add(block)
            check(block)

    def _check_worth_holding(self, block: int) -> None:
        if not self._state[block]:
            raise NotCached(f"block {block} is free and caches nothing")

    def _check_held(self, block: int) -> None:
        if not self._state[block] % CACHED:
            raise NotHeld(f"block {block} is free")

    def _check_cacheable(self, block: int) -> None:
        self._check_held(block)
        if self._state[block] >= CACHED:
            raise AlreadyCached(f"block {block} is cached")


def _is_block(prefix: CachedPrefix, keys: RequestKeys, i: int) -> bool:
    return prefix.tokens == keys.tokens(i, i + 1) and prefix.extra_key == keys.extra_key(i)


def _whole(prefix: CachedPrefix | None) -> Prefix:
    tokens: list[bytes] = []
    extra_keys: list[ExtraKey] = []
    while prefix is not None:
        tokens.append(prefix.tokens)
        extra_keys.append(prefix.extra_key)
        prefix = prefix.parent
    return Prefix(tuple(reversed(extra_keys)), tuple(memoryview(b"".join(reversed(tokens))).cast("i")))
