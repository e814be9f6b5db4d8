"""block_pool on flat lists: a stack of blank blocks, a free queue of cached ones, a hash index of interned prefixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvlockstep.impl.block_pool.free_queue import FreeQueue
from kvlockstep.impl.block_pool.keys import DIGESTS, NamedHash, RequestKeys
from kvlockstep.impl.block_pool.prefixes import CachedPrefix, Prefixes
from kvlockstep.reference.block_pool.contract import AlreadyCached, ExtraKey, HashFunction, InUse, Prefix
from kvlockstep.reference.errors import InvalidArgument, NotCached, NotHeld, OutOfSlots, UnknownSlot

CACHED = 1
HOLDER = 2


class BlockPool:
    """Meets reference.block_pool_contract.BlockPoolTarget.

    Nobody asks by name for a free block that caches nothing, so these are a plain stack. They come before the cached
    ones, of which a hit may take any out of the middle: a FreeQueue. `_state` of a block is HOLDER times the number of
    its holders, plus CACHED if it is cached. `hash_function` is a function, or the name of one of keys.DIGESTS.
    """

    def __init__(self, blocks: int, block_size: int, hash_function: HashFunction | NamedHash | None = None) -> None:
        if blocks < 0 or block_size < 1:
            raise InvalidArgument(f"blocks={blocks}, block_size={block_size}: at least 0 and 1")
        if isinstance(hash_function, str) and hash_function not in DIGESTS:
            raise InvalidArgument(f"hash_function={hash_function!r}: by name there are {', '.join(DIGESTS)}")
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
        elif n == 1:
            taken = self._pop(1)
            self._prefixes.forget_one(taken[0])
        else:
            taken = self._evict_too(n)
        state = self._state
        for block in taken:
            state[block] = HOLDER
        return taken

    def touch(self, blocks: Sequence[int]) -> None:
        """One more holder for each of the blocks. Raises UnknownSlot, InvalidArgument, NotCached."""
        if self._change(blocks, CACHED, CACHED + HOLDER):
            self._idle.remove(blocks)
            return
        before = self._states(blocks)
        if len(before) != len(blocks) or 0 in before:
            self._check("touch", blocks, self._check_worth_holding)
        state = self._state
        self._idle.remove([block for block in blocks if state[block] == CACHED])
        for block in blocks:
            state[block] += HOLDER

    def free(self, blocks: Sequence[int]) -> None:
        """One holder less for each of the blocks. Raises UnknownSlot, InvalidArgument, NotHeld."""
        state, size = self._state, self._blocks
        done = 0
        for done, block in enumerate(blocks):  # noqa: B007
            if not 0 <= block < size or state[block] != HOLDER:
                break
            state[block] = 0
        else:
            self._blank += blocks
            return
        for block in blocks[:done]:
            state[block] = HOLDER
        self._free_any(blocks)

    def cache_full_blocks(self, keys: RequestKeys, table: Sequence[int], cached: int, full: int) -> None:
        """Caches `table[cached:full]` as those blocks of the request, whose first `cached` are cached.

        Raises InvalidArgument, UnknownSlot, NotCached, NotHeld, AlreadyCached.
        """
        if not 0 <= cached <= full <= min(len(table), len(keys)):
            raise InvalidArgument(f"cache_full_blocks: {cached=}, {full=}, {len(table)} blocks, {len(keys)} keys")
        parent = self._cached_as(keys, table[cached - 1], cached) if cached else None
        _ = keys.hashes  # a hash function may raise, so it is called before anything changes
        blocks = table[cached:full]
        if not self._change(blocks, HOLDER, HOLDER + CACHED):
            self._check("cache_full_blocks", blocks, self._check_cacheable)
            for block in blocks:  # some of them have several holders
                self._state[block] += CACHED
        keys.verified = (self._prefixes.cache(keys, cached, blocks, parent), full)

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        """The blocks that cache the longest prefix of the request, at most `limit` of them. Raises InvalidArgument."""
        if limit is not None and limit < 0:
            raise InvalidArgument(f"find_longest_prefix: limit={limit} is negative")
        hits, prefix = self._prefixes.hits(keys, len(keys) if limit is None else min(limit, len(keys)))
        keys.verified = (prefix, len(hits))
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
        return self._state[block] // HOLDER

    def entries(self) -> dict[Prefix, list[int]]:
        """Every cached prefix with the blocks that cache it, in the order in which they were cached."""
        return self._prefixes.entries()

    def _clear(self) -> None:
        self._blank = list(range(self._blocks - 1, -1, -1))
        self._idle = FreeQueue(self._blocks)
        self._state = [0] * self._blocks
        self._prefixes = Prefixes(self._blocks, self._block_size)

    def _evict_too(self, n: int) -> list[int]:
        """All blank blocks, and as many cached ones as are missing."""
        if n < 0:
            raise InvalidArgument(f"allocate: n={n} is negative")
        blank = self._blank
        evicted = self._pop(n)
        self._prefixes.forget(evicted)
        if not blank:
            return evicted
        taken = blank[::-1] + evicted
        blank.clear()
        return taken

    def _pop(self, n: int) -> list[int]:
        """Takes what `n` blocks lack beside the blank ones off the queue of cached ones. Raises OutOfSlots."""
        try:
            return self._idle.pop(n - len(self._blank))
        except OutOfSlots:
            raise OutOfSlots(f"allocate: n={n}, {self.num_free} blocks are free") from None

    def _free_any(self, blocks: Sequence[int]) -> None:
        """`free` for blocks that are cached or that others hold as well, or that cannot be freed."""
        if self._change(blocks, CACHED + HOLDER, CACHED):
            self._idle.append(blocks[::-1])
            return
        state, before = self._state, self._states(blocks)
        if len(before) != len(blocks) or (before and min(before) < HOLDER):
            self._check("free", blocks, self._check_held)
        for block in blocks:
            state[block] -= HOLDER
        self._blank += [block for block in blocks if not state[block]]
        self._idle.append([block for block in reversed(blocks) if state[block] == CACHED])

    def _change(self, blocks: Sequence[int], before: int, after: int) -> bool:
        """Takes all of the blocks from one state to another. False, and nothing is done, if one is not in the first.

        A block that is named twice is not, the second time.
        """
        state, size = self._state, self._blocks
        for done, block in enumerate(blocks):
            if not 0 <= block < size or state[block] != before:
                for changed in blocks[:done]:
                    state[changed] = before
                return False
            state[block] = after
        return True

    def _states(self, blocks: Sequence[int]) -> list[int]:
        """The states of the blocks, or of none if they are not distinct blocks of the pool."""
        if not blocks or len(set(blocks)) < len(blocks) or min(blocks) < 0:
            return []
        try:
            return list(map(self._state.__getitem__, blocks))
        except IndexError:
            return []

    def _cached_as(self, keys: RequestKeys, block: int, count: int) -> CachedPrefix:
        """The prefix of `block`, if it is that of the request's first `count` blocks. Raises UnknownSlot, NotCached.

        Walks towards the root up to what was verified before: mostly no step at all.
        """
        if not 0 <= block < self._blocks:
            raise UnknownSlot(f"cache_full_blocks: block {block} is not one of 0..{self._blocks - 1}")
        prefix = self._prefixes.of[block]
        node, i = prefix, count
        while node is not None and i and (node, i) != keys.verified and _is_block(node, keys, i - 1):
            node, i = node.parent, i - 1
        if prefix is None or (node, i) not in (keys.verified, (None, 0)):
            raise NotCached(f"block {block} does not cache the first {count} blocks of the request")
        return prefix

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
        if self._state[block] < HOLDER:
            raise NotHeld(f"block {block} is free")

    def _check_cacheable(self, block: int) -> None:
        self._check_held(block)
        if self._state[block] & CACHED:
            raise AlreadyCached(f"block {block} is cached")


def _is_block(prefix: CachedPrefix, keys: RequestKeys, block: int) -> bool:
    return prefix.tokens == keys.tokens(block, block + 1) and prefix.extra_key == next(keys.extra_keys(block))
