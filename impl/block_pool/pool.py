"""block_pool on flat lists: a stack of blank blocks, a free queue of cached ones, a hash index of interned prefixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from kvlockstep.impl.block_pool.free_queue import FreeQueue
from kvlockstep.impl.block_pool.keys import TOKEN_BYTES, RequestKeys
from kvlockstep.reference.block_pool.contract import AlreadyCached, ExtraKey, HashFunction, InUse, Prefix
from kvlockstep.reference.errors import InvalidArgument, NotCached, NotHeld, OutOfSlots, UnknownSlot

CACHED = 1 << 29


class CachedPrefix:
    """A prefix that `blocks` cache, the one cached first at first, or that only longer ones build on if there are none.

    Two of equal tokens, extra key and parent never coexist, so identity proves the whole prefix. `tokens` are those of
    the last block; `children` counts the prefixes one block longer; `next` has the same hash.
    """

    __slots__ = ("blocks", "children", "extra_key", "hash", "next", "parent", "tokens")

    def __init__(
        self,
        hash: int,
        tokens: bytes,
        extra_key: ExtraKey,
        parent: CachedPrefix | None,
        blocks: list[int],
        next: CachedPrefix | None,
    ) -> None:
        self.hash = hash
        self.tokens = tokens
        self.extra_key = extra_key
        self.parent = parent
        self.children = 0
        self.blocks = blocks
        self.next = next


class BlockPool:
    """Meets reference.block_pool_contract.BlockPoolTarget.

    Nobody asks by name for a free block that caches nothing, so these are a plain stack. They come before the cached
    ones, of which a hit may take any out of the middle: a FreeQueue. `_state` of a block is the number of its holders,
    plus CACHED if it is cached. A prefix without blocks stays interned as long as a longer one is.
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
        if not self._are_distinct(blocks) or 0 in [state[block] for block in blocks]:
            self._check("touch", blocks, self._check_worth_holding)
        idle = []
        for block in blocks:
            if state[block] == CACHED:
                idle.append(block)
            state[block] += 1
        self._idle.remove(idle)

    def free(self, blocks: Sequence[int]) -> None:
        """One holder less for each of the blocks. Raises UnknownSlot, InvalidArgument, NotHeld."""
        state, size = self._state, self._blocks
        done = 0
        for done, block in enumerate(blocks):  # noqa: B007
            if not 0 <= block < size or state[block] != 1:
                break
            state[block] = 0
        else:
            self._blank += blocks
            return
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
        state, blocks = self._state, table[cached:full]
        if not self._are_distinct(blocks) or not all([0 < state[block] < CACHED for block in blocks]):  # noqa: C419
            self._check("cache_full_blocks", blocks, self._check_cacheable)
        prefixes = self._interned(keys, cached, full, parent)
        for block, prefix in zip(blocks, prefixes, strict=False):
            prefix.blocks.append(block)
        known = len(prefixes)
        parent = prefixes[-1] if prefixes else parent
        prefixes += self._intern(keys, cached + known, blocks[known:], parent)
        for block, prefix in zip(blocks, prefixes, strict=True):
            self._prefixes[block] = prefix
            state[block] += CACHED
        keys.verified = (prefixes[-1] if prefixes else parent, full)

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        """The blocks that cache the longest prefix of the request, at most `limit` of them. Raises InvalidArgument."""
        if limit is not None and limit < 0:
            raise InvalidArgument(f"find_longest_prefix: limit={limit} is negative")
        prefixes = self._interned(keys, 0, len(keys.hashes[:limit]), None)
        hits = [prefix.blocks[0] for prefix in takewhile(lambda prefix: prefix.blocks, prefixes)]
        keys.verified = (prefixes[len(hits) - 1] if hits else None, len(hits))
        return hits

    def reset(self) -> None:
        """Forgets everything cached; the queue is in the order of the block numbers. Raises InUse."""
        if self.num_free < self._blocks:
            raise InUse(f"reset: {self._blocks - self.num_free} blocks are held")
        self._clear()

    def free_queue(self) -> list[int]:
        """The free blocks, the next to be handed out first."""
        return [*reversed(self._blank), *self._idle]

    def ref_count(self, block: int) -> int:
        """The number of holders of a block. Raises UnknownSlot."""
        if not 0 <= block < self._blocks:
            raise UnknownSlot(f"ref_count: block {block} is not one of 0..{self._blocks - 1}")
        return self._state[block] % CACHED

    def entries(self) -> dict[Prefix, list[int]]:
        """Every cached prefix with the blocks that cache it, in the order in which they were cached."""
        prefixes = {prefix for prefix in self._prefixes if prefix is not None}
        return {_whole(prefix): prefix.blocks.copy() for prefix in prefixes}

    def _clear(self) -> None:
        self._blank = list(range(self._blocks - 1, -1, -1))
        self._idle = FreeQueue(self._blocks)
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
        """`free` for blocks that are cached or that others hold as well, or that cannot be freed."""
        state = self._state
        if not self._are_distinct(blocks) or 0 in (before := [state[block] for block in blocks]) or CACHED in before:
            self._check("free", blocks, self._check_held)
        idle = []
        for block in blocks:
            left = state[block] = state[block] - 1
            if left == CACHED:
                idle.append(block)
            elif not left:
                self._blank.append(block)
        idle.reverse()
        self._idle.append(idle)

    def _interned(self, keys: RequestKeys, start: int, end: int, parent: CachedPrefix | None) -> list[CachedPrefix]:
        """The interned prefixes of the request that end with block `start`, behind `parent`, and on to block `end` - 1.

        Where one is missing the longer ones are, too.
        """
        found: list[CachedPrefix] = []
        index, hashes = self._index, keys.hashes
        if start == end or hashes[start] not in index:
            return found
        tokens, width = keys.tokens(start, end), self._block_size * TOKEN_BYTES
        at = 0
        for key, extra_key in zip(hashes[start:end], keys.extra_keys(start), strict=False):
            own = tokens[at : at + width]
            prefix = index.get(key)
            while prefix is not None:
                if prefix.parent is parent and prefix.tokens == own and prefix.extra_key == extra_key:
                    break
                prefix = prefix.next
            else:
                break
            found.append(prefix)
            parent = prefix
            at += width
        return found

    def _intern(
        self, keys: RequestKeys, start: int, blocks: Sequence[int], parent: CachedPrefix | None
    ) -> list[CachedPrefix]:
        """The next prefixes of the request, none of which is interned yet, each cached by one of the blocks."""
        made: list[CachedPrefix] = []
        end = start + len(blocks)
        index, tokens, width = self._index, keys.tokens(start, end), self._block_size * TOKEN_BYTES
        at = 0
        for block, key, extra_key in zip(blocks, keys.hashes[start:end], keys.extra_keys(start), strict=False):
            if parent is not None:
                parent.children += 1
            parent = CachedPrefix(key, tokens[at : at + width], extra_key, parent, [block], index.get(key))
            index[key] = parent
            made.append(parent)
            at += width
        return made

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
        """The prefix of `block`, if it is that of the request's first `count` blocks. Raises UnknownSlot, NotCached.

        Walks towards the root up to what was verified before: mostly no step at all.
        """
        if not 0 <= block < self._blocks:
            raise UnknownSlot(f"cache_full_blocks: block {block} is not one of 0..{self._blocks - 1}")
        prefix = self._prefixes[block]
        node, i = prefix, count
        while node is not None and i and (node, i) != keys.verified and _is_block(node, keys, i - 1):
            node, i = node.parent, i - 1
        if prefix is None or (node, i) not in (keys.verified, (None, 0)):
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


def _is_block(prefix: CachedPrefix, keys: RequestKeys, block: int) -> bool:
    return prefix.tokens == keys.tokens(block, block + 1) and prefix.extra_key == next(keys.extra_keys(block))


def _whole(prefix: CachedPrefix | None) -> Prefix:
    tokens: list[bytes] = []
    extra_keys: list[ExtraKey] = []
    while prefix is not None:
        tokens.append(prefix.tokens)
        extra_keys.append(prefix.extra_key)
        prefix = prefix.parent
    return Prefix(tuple(reversed(extra_keys)), tuple(memoryview(b"".join(reversed(tokens))).cast("i")))
