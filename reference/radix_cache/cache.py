"""radix_cache: prefixes shared in a tree, over the pool that their slots come from. Source: seed 001, CacheManager.

Page p is the slots p * page_size and following. A page is free, held by the caller, or cached in the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from kvlockstep.reference.errors import InvalidArgument, NotHeld, OutOfSlots, UnknownSlot
from kvlockstep.reference.radix_cache.contract import RadixMatch, RadixSizes
from kvlockstep.reference.radix_cache.tree import Handle, Prefix, RadixTree


class RadixCache:
    """`pages` pages of `page_size` slots. Free pages are taken in the order in which they became free.

    Raises InvalidArgument if a size is out of range.
    """

    tree_type: ClassVar[type[RadixTree]] = RadixTree

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 0 or page_size < 1:
            raise InvalidArgument(f"pages={pages}, page_size={page_size}: less than 0 or 1")
        self._pages = pages
        self._size = page_size
        self.reset()

    def reset(self) -> None:
        """Empties the cache: every handle is stale and every slot free, even those that the caller held."""
        self._tree = self.tree_type(self._size)
        self._free = list(range(self._pages))
        self._held: set[int] = set()

    def match_prefix(self, tokens: Sequence[int]) -> RadixMatch:
        """The longest cached prefix of whole pages. Changes nothing but how recently it was used."""
        handle, pages = self._tree.match(tuple(tokens))
        return RadixMatch(len(handle.prefix), self._slots(pages), handle)

    def match_request(self, tokens: Sequence[int]) -> RadixMatch:
        """As `match_prefix`, but leaves at least the last token to compute. Raises InvalidArgument if there is none."""
        if not len(tokens):
            raise InvalidArgument("match_request: no tokens")
        return self.match_prefix(tokens[:-1])

    def lock(self, handle: Handle) -> None:
        """Nothing on the handle's path is evicted until it is unlocked as often. Raises StaleHandle."""
        self._tree.lock(handle)

    def unlock(self, handle: Handle) -> None:
        """Takes one lock of this handle back. Raises StaleHandle, NotLocked."""
        self._tree.unlock(handle)

    def insert_prefix(self, tokens: Sequence[int], slots: Sequence[int]) -> int:
        """Caches the whole pages of `tokens` and returns the length that was there already.

        `slots` are those of all the tokens, to the end of the last page. From that length on the caller must hold them,
        and the cache takes those of whole pages; slots before it are ignored, and duplicates stay the caller's.
        Raises InvalidArgument, UnknownSlot, NotHeld.
        """
        sequence = tuple(tokens)
        already = self._tree.cached_length(sequence)
        self._insert(sequence, self._own_pages(sequence, slots, already))
        return already

    def cache_finished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> int:
        """Caches a request that is done, frees those of its pages that are not needed, and unlocks its handle.

        `slots` as for `insert_prefix`; the request holds those behind the handle's length. It frees duplicates, first
        one first, and a last page that is not full. Returns the length that was there already. Raises StaleHandle,
        NotLocked, InvalidArgument (also if `tokens` do not begin with the handle's prefix), UnknownSlot, NotHeld.
        """
        already, duplicates, rest = self._cache(handle, tokens, slots)
        self._release(duplicates + rest)
        self._tree.unlock(handle)
        return already

    def cache_unfinished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> RadixMatch:
        """Caches the computed pages of a running request and moves its lock to a new handle that covers them.

        As `cache_finished`, but a last page that is not full stays the caller's. Returns the match of all whole pages,
        in the slots that the request has to use from now on.
        """
        _, duplicates, _ = self._cache(handle, tokens, slots)
        self._release(duplicates)
        match = self.match_prefix(tokens)
        self._tree.lock(match.handle)
        self._tree.unlock(handle)
        return match

    def allocate(self, n: int) -> list[int]:
        """The slots of the fewest pages that hold `n` tokens, for the caller to hold; evicts the missing pages.

        Raises InvalidArgument, and OutOfSlots if free and evictable pages together do not suffice.
        """
        count = self._pages_for("allocate", n)
        missing = max(0, count - len(self._free))
        evictable, _ = self._tree.counts()
        if missing > evictable:
            raise OutOfSlots(f"allocate: n={n} takes {count} pages, {len(self._free)} are free, {evictable} evictable")
        self._free += self._tree.evict(missing)
        pages, self._free = self._free[:count], self._free[count:]
        self._held.update(pages)
        return self._slots(pages)

    def free(self, slots: Sequence[int]) -> None:
        """Takes back whole pages that the caller holds. Raises UnknownSlot, InvalidArgument, NotHeld."""
        self._release(self._held_pages(slots))

    def evict(self, n: int) -> list[int]:
        """Frees the fewest pages that hold `n` tokens; their slots, page by page in the order of eviction.

        Raises InvalidArgument, and OutOfSlots if fewer pages are evictable.
        """
        count = self._pages_for("evict", n)
        evictable, _ = self._tree.counts()
        if count > evictable:
            raise OutOfSlots(f"evict: n={n} takes {count} pages, {evictable} are evictable")
        pages = self._tree.evict(count)
        self._free += pages
        return self._slots(pages)

    def sizes(self) -> RadixSizes:
        """Free, evictable and protected slots."""
        return RadixSizes(*[count * self._size for count in (len(self._free), *self._tree.counts())])

    def free_slots(self) -> list[int]:
        """The free slots in the order in which `allocate` takes them."""
        return self._slots(self._free)

    def eviction_order(self) -> list[int]:
        """The evictable slots in the order in which `evict` would free them all; uses nothing."""
        return self._slots(self._tree.eviction_order())

    def entries(self) -> dict[Prefix, tuple[tuple[int, ...], int]]:
        """Every prefix of whole pages with the slots of its last page and its number of locks; uses nothing."""
        return {p: (tuple(self._slots([page])), locks) for p, (page, locks) in self._tree.entries().items()}

    def render(self) -> str:
        """Draws the tree: a line for each run of pages without a branch or a change of locks."""
        entries = self._tree.entries()
        below: dict[Prefix, list[Prefix]] = {}
        for prefix in sorted(entries, reverse=True):
            below.setdefault(prefix[: -self._size], []).append(prefix)
        lines = ["free={} evictable={} protected={}".format(*self.sizes())]
        todo = [(1, prefix) for prefix in below.get((), ())]
        while todo:
            depth, last = todo.pop()
            start, locks, pages = len(last) - self._size, entries[last][1], [entries[last][0]]
            while len(next_ := below.get(last, [])) == 1 and entries[next_[0]][1] == locks:
                last = next_[0]
                pages.append(entries[last][0])
            line = f"{'  ' * depth}{list(last[start:])} in {self._slots(pages)}"
            lines.append(f"{line} locks={locks}" if locks else line)
            todo += [(depth + 1, prefix) for prefix in below.get(last, ())]
        return "\n".join(lines)

    def _cache(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> tuple[int, list[int], list[int]]:
        """Caches a request; the length that was there, the pages that are duplicates, and the last one if not full."""
        sequence, matched = tuple(tokens), len(handle.prefix)
        self._tree.check_locked(handle)
        if sequence[:matched] != handle.prefix:
            raise InvalidArgument(f"tokens do not begin with the handle's {list(handle.prefix)}")
        pages = self._own_pages(sequence, slots, matched)
        already = self._tree.cached_length(sequence)
        duplicates = (already - matched) // self._size
        self._insert(sequence, pages[duplicates:])
        return already, pages[:duplicates], pages[(len(sequence) - matched) // self._size :]

    def _insert(self, sequence: Prefix, pages: list[int]) -> None:
        whole = (len(sequence) - self._tree.cached_length(sequence)) // self._size
        self._tree.insert(sequence, pages[:whole])
        self._held.difference_update(pages[:whole])

    def _own_pages(self, sequence: Prefix, slots: Sequence[int], start: int) -> list[int]:
        if len(slots) != self._pages_for("tokens", len(sequence)) * self._size:
            raise InvalidArgument(f"{len(slots)} slots are not the whole pages of {len(sequence)} tokens")
        return self._held_pages(slots[start:])

    def _held_pages(self, slots: Sequence[int]) -> list[int]:
        wrong = [slot for slot in slots if not 0 <= slot < self._pages * self._size]
        if wrong:
            raise UnknownSlot(f"slot={wrong[0]} is not one of 0..{self._pages * self._size - 1}")
        pages = [slot // self._size for slot in slots[:: self._size]]
        if list(slots) != self._slots(pages):
            raise InvalidArgument(f"slots={list(slots)} are not whole pages of {self._size}")
        if not self._held.issuperset(pages) or len(set(pages)) < len(pages):
            raise NotHeld(f"slots={list(slots)} are not all held, each once")
        return pages

    def _release(self, pages: list[int]) -> None:
        self._held.difference_update(pages)
        self._free += pages

    def _pages_for(self, operation: str, n: int) -> int:
        if n < 0:
            raise InvalidArgument(f"{operation}: n={n} is negative")
        return -(-n // self._size)

    def _slots(self, pages: Iterable[int]) -> list[int]:
        return [page * self._size + i for page in pages for i in range(self._size)]
