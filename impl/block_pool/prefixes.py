"""The cached prefixes of a BlockPool, interned, in a hash index that never has to be rebuilt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from kvlockstep.impl.block_pool.keys import TOKEN_BYTES, RequestKeys
from kvlockstep.reference.block_pool.contract import ExtraKey, Prefix

NONE = -1
STEPS = 16


class CachedPrefix:
    """A prefix that blocks cache, `first` the one cached first, or that only longer ones build on if `first` is NONE.

    Two of equal tokens, extra key and parent never coexist, so identity proves the whole prefix. `tokens` are those of
    the last block; `children` counts the prefixes one block longer and is NONE once the prefix is dropped; `next` is
    in the same bucket.
    """

    __slots__ = ("children", "extra_key", "first", "hash", "last", "next", "parent", "tokens")

    def __init__(
        self,
        hash: int,
        tokens: bytes,
        extra_key: ExtraKey,
        parent: CachedPrefix | None,
        block: int,
        next: CachedPrefix | None,
    ) -> None:
        self.hash = hash
        self.tokens = tokens
        self.extra_key = extra_key
        self.parent = parent
        self.children = 0
        self.first = self.last = block
        self.next = next


class Prefixes:
    """What each of `blocks` blocks caches: `of[block]`.

    A prefix without blocks stays interned as long as a longer one is. The index is an array of buckets, at least two
    for each block, for a dict of a million keys stops for tens of milliseconds whenever it is full. The blocks that
    cache one prefix are linked under their numbers, in the order in which they were cached. When a prefix goes, those
    above it that it alone kept go as well, STEPS for each block forgotten; the rest waits in `_loose`.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        self._width = block_size * TOKEN_BYTES
        self.of: list[CachedPrefix | None] = [None] * blocks
        self._mask = (1 << (2 * blocks).bit_length()) - 1
        self._buckets: list[CachedPrefix | None] = [None] * (self._mask + 1)
        self._later = [NONE] * blocks
        self._earlier = [NONE] * blocks
        self._loose: list[CachedPrefix] = []

    def hits(self, keys: RequestKeys, blocks: int) -> tuple[list[int], CachedPrefix | None]:
        """The blocks that cache the longest prefix of the request, at most `blocks` of them, and that prefix."""
        prefixes = list(takewhile(lambda prefix: prefix.first != NONE, self._interned(keys, 0, blocks, None)))
        return [prefix.first for prefix in prefixes], prefixes[-1] if prefixes else None

    def cache(
        self, keys: RequestKeys, start: int, blocks: Sequence[int], parent: CachedPrefix | None
    ) -> CachedPrefix | None:
        """The blocks cache what follows the first `start` blocks of the request, `parent`; the whole prefix."""
        of = self.of
        end = start + len(blocks)
        known = self._interned(keys, start, end, parent)
        for block, prefix in zip(blocks, known, strict=False):
            of[block] = prefix
            if prefix.first == NONE:
                prefix.first = block
            else:
                self._later[prefix.last] = block
                self._earlier[block] = prefix.last
            prefix.last = block
        if known:
            parent = known[-1]
        start += len(known)
        if start == end:
            return parent
        buckets, mask, tokens, width = self._buckets, self._mask, keys.tokens(start, end), self._width
        at = 0
        new = zip(blocks[len(known) :], keys.hashes[start:end], keys.extra_keys(start), strict=False)
        for block, key, extra_key in new:
            if parent is not None:
                parent.children += 1
            bucket = key & mask
            parent = CachedPrefix(key, tokens[at : at + width], extra_key, parent, block, buckets[bucket])
            buckets[bucket] = of[block] = parent
            at += width
        return parent

    def forget(self, blocks: Sequence[int]) -> None:
        """The blocks, all of which cache something, no longer do."""
        of, loose = self.of, self._loose
        for block in blocks:
            prefix = of[block]
            assert prefix is not None
            of[block] = None
            if prefix.first != prefix.last:
                self._leave(prefix, block)
                continue
            prefix.first = NONE
            if loose:
                self._drop(loose.pop())
            if not prefix.children:
                self._drop(prefix)

    def forget_one(self, block: int) -> None:
        """As `forget`, in less time for most blocks.

        These are the only ones that cache their prefix, the first in its bucket; nothing builds on it, and what it
        builds on stays.
        """
        prefix = self.of[block]
        assert prefix is not None
        parent, bucket = prefix.parent, prefix.hash & self._mask
        alone = prefix.first == prefix.last and not prefix.children and self._buckets[bucket] is prefix
        if not alone or self._loose or (parent is not None and parent.first == NONE):
            self.forget((block,))
            return
        self.of[block] = None
        self._buckets[bucket] = prefix.next
        prefix.first = prefix.children = NONE
        if parent is not None:
            parent.children -= 1

    def entries(self) -> dict[Prefix, list[int]]:
        """Every cached prefix with the blocks that cache it, in the order in which they were cached."""
        prefixes = {prefix for prefix in self.of if prefix is not None}
        return {_whole(prefix): list(self._blocks_of(prefix)) for prefix in prefixes}

    def interned(self) -> Iterator[CachedPrefix]:
        """All prefixes, also those without blocks."""
        for prefix in self._buckets:
            while prefix is not None:
                yield prefix
                prefix = prefix.next

    def _interned(self, keys: RequestKeys, start: int, end: int, parent: CachedPrefix | None) -> list[CachedPrefix]:
        """The interned prefixes of the request that end with block `start`, behind `parent`, and on to block `end` - 1.

        Where one is missing the longer ones are, too.
        """
        found: list[CachedPrefix] = []
        buckets, mask, hashes = self._buckets, self._mask, keys.hashes
        if start == end or not self._has(hashes[start]):
            return found
        tokens, width = keys.tokens(start, end), self._width
        at = 0
        for key, extra_key in zip(hashes[start:end], keys.extra_keys(start), strict=False):
            own = tokens[at : at + width]
            prefix = buckets[key & mask]
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

    def _has(self, key: int) -> bool:
        prefix = self._buckets[key & self._mask]
        while prefix is not None and prefix.hash != key:
            prefix = prefix.next
        return prefix is not None

    def _blocks_of(self, prefix: CachedPrefix) -> Iterator[int]:
        block = prefix.first
        while block != NONE:
            yield block
            block = self._later[block]

    def _leave(self, prefix: CachedPrefix, block: int) -> None:
        """One of several blocks no longer caches the prefix."""
        earlier, later = self._earlier[block], self._later[block]
        self._earlier[block] = self._later[block] = NONE
        if earlier == NONE:
            prefix.first = later
        else:
            self._later[earlier] = later
        if later == NONE:
            prefix.last = earlier
        else:
            self._earlier[later] = earlier

    def _drop(self, dropped: CachedPrefix) -> None:
        """Takes a prefix out of the index if it has neither blocks nor children, and those above it that now have none.

        One that waited may have got them again, or be dropped already.
        """
        buckets, mask = self._buckets, self._mask
        prefix: CachedPrefix | None = dropped
        for _ in range(STEPS):
            if prefix is None or prefix.children or prefix.first != NONE:
                return
            bucket = prefix.hash & mask
            other = buckets[bucket]
            if other is prefix:
                buckets[bucket] = prefix.next
            else:
                while other is not None and other.next is not prefix:
                    other = other.next
                assert other is not None
                other.next = prefix.next
            prefix.children = NONE
            prefix = prefix.parent
            if prefix is not None:
                prefix.children -= 1
        if prefix is not None:
            self._loose.append(prefix)


def _whole(prefix: CachedPrefix | None) -> Prefix:
    tokens: list[bytes] = []
    extra_keys: list[ExtraKey] = []
    while prefix is not None:
        tokens.append(prefix.tokens)
        extra_keys.append(prefix.extra_key)
        prefix = prefix.parent
    return Prefix(tuple(reversed(extra_keys)), tuple(memoryview(b"".join(reversed(tokens))).cast("i")))
