"""radix_cache: a path-compressed prefix tree over a queue of free pages. Source: seed 001, CacheManager."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvlockstep.impl.radix_cache.tree import Handle, Node, RadixTree, Slots, as_bytes, tokens_of
from kvlockstep.reference.errors import InvalidArgument, NotHeld, OutOfSlots, UnknownSlot
from kvlockstep.reference.radix_cache.contract import RadixMatch, RadixSizes

Pages = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]
Ints = Sequence[int] | npt.NDArray[Any]
ONE = np.int32(1)


class PageQueue:
    """Free pages in a ring, first in, first out; both ends in time proportional to the pages moved."""

    def __init__(self, pages: int) -> None:
        self._ring = np.arange(pages, dtype=np.int32)
        self._first = 0
        self.count = pages

    def take(self, n: int) -> Pages:
        """The first n pages, a new array; there are as many."""
        first, ring = self._first, self._ring
        last = first + n
        self.count -= n
        if last <= len(ring):
            self._first = last
            return ring[first:last].copy()
        self._first = last - len(ring)
        return np.concatenate((ring[first:], ring[: self._first]))

    def give(self, pages: Pages | Indices) -> None:
        """Puts pages at the end."""
        ring, n = self._ring, len(pages)
        end = self._first + self.count
        start = end if end < len(ring) else end - len(ring)
        self.count += n
        fitting = len(ring) - start
        if n <= fitting:
            ring[start : start + n] = pages
        else:
            ring[start:] = pages[:fitting]
            ring[: n - fitting] = pages[fitting:]

    def pages(self) -> Pages:
        """All pages in their order, a new array."""
        last = self._first + self.count
        return np.concatenate((self._ring[self._first : last], self._ring[: max(0, last - len(self._ring))]))


class RadixCache:
    """`pages` pages of `page_size` slots. Meets RadixCacheTarget; slots are returned as int32.

    Every lookup, insert and cache call takes an `extra_key`; an entry under one key is not found under another.
    Tokens in a contiguous buffer of int64 (array("q"), numpy) are read in place.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 0 or page_size < 1:
            raise InvalidArgument(f"pages={pages}, page_size={page_size}: less than 0 or 1")
        self._pages = pages
        self._size = page_size
        self._total = pages * page_size
        self._within = np.arange(page_size, dtype=np.int32)
        self.tree = RadixTree(page_size)
        self.reset()

    def reset(self) -> None:
        """Empties the cache: every handle is stale and every slot free, even those that the caller held."""
        self.tree.clear()
        self._queue = PageQueue(self._pages)
        self._held = np.zeros(self._pages, np.int32)

    def match_prefix(self, tokens: Sequence[int], extra_key: Hashable = None) -> RadixMatch:
        """The longest cached prefix of whole pages."""
        return self._match(as_bytes(tokens), extra_key)

    def match_request(self, tokens: Sequence[int], extra_key: Hashable = None) -> RadixMatch:
        """The longest cached prefix of whole pages that leaves a token to compute. Raises InvalidArgument."""
        if not len(tokens):
            raise InvalidArgument("match_request: no tokens")
        return self._match(as_bytes(tokens)[:-8], extra_key)

    def lock(self, handle: Handle) -> None:
        """Protects the handle's path from eviction. Raises StaleHandle."""
        self.tree.lock(handle)

    def unlock(self, handle: Handle) -> None:
        """Takes one lock of the handle back. Raises StaleHandle, NotLocked."""
        self.tree.unlock(handle)

    def insert_prefix(self, tokens: Sequence[int], slots: Ints, extra_key: Hashable = None) -> int:
        """Caches the whole pages of `tokens`; the length that was there.

        Raises InvalidArgument, UnknownSlot, NotHeld.
        """
        data = as_bytes(tokens)
        spot = self.tree.find(data, extra_key)
        already = spot.length
        own, pages = self._claim_own(tokens, slots, already)
        new = len(tokens) // self._size * self._size - already
        self.tree.extend(self.tree.reach(spot), data, own[:new], extra_key)
        if new < len(own):
            self._hold(pages[new // self._size :])
        return already

    def cache_finished(self, handle: Handle, tokens: Sequence[int], slots: Ints, extra_key: Hashable = None) -> int:
        """Caches a request, frees its duplicates and its last page if not full, unlocks; the length that was there.

        Raises StaleHandle, NotLocked, InvalidArgument, UnknownSlot, NotHeld.
        """
        already, _, pages, duplicates, whole = self._cache(handle, tokens, slots, extra_key)
        if duplicates:
            self._queue.give(pages[:duplicates])
        if whole < len(pages):
            self._queue.give(pages[whole:])
        self.tree.unlock(handle)
        return already

    def cache_unfinished(
        self, handle: Handle, tokens: Sequence[int], slots: Ints, extra_key: Hashable = None
    ) -> RadixMatch:
        """Caches what a running request has computed, frees duplicates, and moves its lock to the new handle.

        Raises StaleHandle, NotLocked, InvalidArgument, UnknownSlot, NotHeld.
        """
        _, node, pages, duplicates, whole = self._cache(handle, tokens, slots, extra_key)
        if whole < len(pages):
            self._hold(pages[whole:])
        if duplicates:
            self._queue.give(pages[:duplicates])
        return RadixMatch(node.end, self.tree.gather(node), self.tree.advance(handle, node))

    def allocate(self, n: int) -> Slots:
        """The slots of the fewest pages that hold `n` tokens; evicts what is missing.

        Raises InvalidArgument, OutOfSlots.
        """
        count = self._pages_for("allocate", n)
        missing = count - self._queue.count
        if missing > 0:
            self._evict("allocate", n, missing)
        pages = self._queue.take(count)
        self._hold(pages)
        slots: Slots = self._slots(pages)
        return slots

    def free(self, slots: Ints) -> None:
        """Gives whole pages that the caller holds back. Raises UnknownSlot, InvalidArgument, NotHeld."""
        self._queue.give(self._claim(np.asarray(slots)))

    def evict(self, n: int) -> Slots:
        """Frees the fewest pages that hold `n` tokens. Raises InvalidArgument, OutOfSlots."""
        return self._evict("evict", n, self._pages_for("evict", n))

    def sizes(self) -> RadixSizes:
        """Free, evictable and protected slots."""
        return RadixSizes(self._queue.count * self._size, self.tree.evictable, self.tree.protected)

    def free_slots(self) -> list[int]:
        """The free slots in the order in which `allocate` takes them."""
        slots: list[int] = self._slots(self._queue.pages()).tolist()
        return slots

    def eviction_order(self) -> list[int]:
        """The evictable slots in the order in which `evict` would free them all."""
        nodes = [node.slots.reshape(-1, self._size)[::-1].reshape(-1).tolist() for node in self.tree.idle()]
        return [slot for slots in nodes for slot in slots]

    def entries(self) -> dict[tuple[int, ...], tuple[tuple[int, ...], int]]:
        """Every prefix of whole pages cached without an extra key, with the slots of its last page and its locks."""
        size, found = self._size, {}
        prefixes: dict[Node, tuple[int, ...]] = {self.tree.root: ()}
        for node in self.tree.walk():
            if node.parent not in prefixes or isinstance(node.key, tuple):
                continue
            tokens, slots = tokens_of(node), node.slots.tolist()
            before = prefixes[node.parent]
            prefixes[node] = (*before, *tokens)
            for end in range(size, len(tokens) + 1, size):
                found[(*before, *tokens[:end])] = (tuple(slots[end - size : end]), node.locks)
        return found

    def render(self) -> str:
        """The tree for people to read, in runs that neither branch nor change in locks."""
        lines = ["free={} evictable={} protected={}".format(*self.sizes())]
        depths = {self.tree.root: 0}
        tokens: list[int] = []
        slots: list[int] = []
        for node in self.tree.walk():
            parent = node.parent
            begins = parent is self.tree.root or len(parent.children) > 1 or parent.locks != node.locks
            if begins:
                tokens, slots = [], []
            tokens += tokens_of(node)
            slots += node.slots.tolist()
            depths[node] = depths[parent] + begins
            if len(node.children) == 1 and next(iter(node.children.values())).locks == node.locks:
                continue
            key = f" key={node.key[0]}" if isinstance(node.key, tuple) else ""
            locks = f" locks={node.locks}" if node.locks else ""
            lines.append(f"{'  ' * depths[node]}{tokens} in {slots}{locks}{key}")
        return "\n".join(lines)

    def _match(self, data: memoryview, extra_key: Hashable) -> RadixMatch:
        tree = self.tree
        node = tree.reach(tree.find(data, extra_key))
        return RadixMatch(node.end, tree.gather(node), Handle(tree.root, node))

    def _cache(
        self, handle: Handle, tokens: Sequence[int], slots: Ints, extra_key: Hashable
    ) -> tuple[int, Node, Indices, int, int]:
        """The length that was there, the last node, the request's own pages, and how many are duplicates and whole."""
        tree, size = self.tree, self._size
        tree.check_locked(handle)
        data = as_bytes(tokens)
        spot = tree.find(data, extra_key)
        if not tree.covers(spot.node, handle):
            raise InvalidArgument(f"tokens do not begin with the {handle.length} of the handle")
        matched, already = handle.length, spot.length
        own, pages = self._claim_own(tokens, slots, matched)
        whole = len(tokens) // size * size
        node = tree.extend(tree.reach(spot), data, own[already - matched : whole - matched], extra_key)
        return already, node, pages, (already - matched) // size, (whole - matched) // size

    def _claim_own(self, tokens: Sequence[int], slots: Ints, start: int) -> tuple[npt.NDArray[Any], Indices]:
        """Claims the slots from `start` on; them and their pages."""
        if len(slots) != -(-len(tokens) // self._size) * self._size:
            raise InvalidArgument(f"{len(slots)} slots are not the whole pages of {len(tokens)} tokens")
        own = np.asarray(slots)[start:]
        return own, self._claim(own)

    def _claim(self, slots: npt.NDArray[Any]) -> Indices:
        """Takes whole pages from the caller, who no longer holds them. Raises UnknownSlot, InvalidArgument, NotHeld."""
        count, size = len(slots), self._size
        if not count:
            return np.empty(0, np.int64)
        if size == 1 and slots[-1] - slots[0] == count - 1 and (slots[1:] > slots[:-1]).all():
            # One run, as a fresh allocation is: no count is needed to see that no slot is named twice.
            start = int(slots[0])
            held = self._held[max(0, start) : start + count]
            if len(held) == count and held.all():
                held.fill(0)
                return np.arange(start, start + count)
        pages = slots = slots.astype(np.int64)
        if slots.view(np.uint64).max() >= self._total:
            raise UnknownSlot(f"slots={slots.tolist()} are not all of 0..{self._total - 1}")
        if size > 1:
            pages = slots[::size] // size
            if count % size or not np.array_equal(self._slots(pages), slots):
                raise InvalidArgument(f"slots={slots.tolist()} are not whole pages of {size}")
        held = self._held
        np.subtract.at(held, pages, ONE)
        if held.take(pages).any():
            # Counts of held pages are 1, so now 0: the others were not held, or named more than once.
            np.add.at(held, pages, ONE)
            raise NotHeld(f"slots={slots.tolist()} are not all held, each once")
        return pages

    def _hold(self, pages: Pages | Indices) -> None:
        self._held[pages.astype(np.int64)] = ONE

    def _evict(self, operation: str, n: int, pages: int) -> Slots:
        tokens = pages * self._size
        if tokens > self.tree.evictable:
            raise OutOfSlots(
                f"{operation}: n={n} lacks {pages} pages, {self.tree.evictable // self._size} are evictable"
            )
        slots = self.tree.evict(tokens)
        self._queue.give(slots if self._size == 1 else slots[:: self._size] // self._size)
        return slots

    def _pages_for(self, operation: str, n: int) -> int:
        if n < 0:
            raise InvalidArgument(f"{operation}: n={n} is negative")
        return -(-n // self._size)

    def _slots(self, pages: Pages | Indices) -> Any:
        if self._size == 1:
            return pages
        return (pages[:, None] * self._size + self._within).reshape(-1)
