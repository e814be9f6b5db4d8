"""The tree of radix_cache: prefixes and their pages. Source: seed 001, RadixCacheManager.

Not compressed: every prefix of whole pages is an entry of a dict and owns its last page. So nothing has to be split.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvlockstep.reference.radix_cache.contract import NotLocked, StaleHandle

Prefix = tuple[int, ...]


@dataclass(eq=False)
class Entry:
    """A cached page, its last use, and the number of locks on paths through it."""

    page: int
    used: int
    locks: int = 0


@dataclass(eq=False)
class Handle:
    """Names a prefix as it was found: by `entry`, which is gone when it is evicted, even if the prefix comes back."""

    prefix: Prefix
    entry: Entry
    locks: int = 0


class RadixTree:
    """Pages by the prefix that ends in them. A match, an insert and an unlock use every page on their path."""

    def __init__(self, page_size: int) -> None:
        self._size = page_size
        self._root = Entry(-1, 0)
        self._entries: dict[Prefix, Entry] = {}
        self._clock = 0

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        """A handle of the longest cached prefix, and its pages."""
        prefix = sequence[: self.cached_length(sequence)]
        self._use(prefix)
        pages = [self._entries[p].page for p in self._path(prefix)]
        return Handle(prefix, self._entries[prefix] if prefix else self._root), pages

    def cached_length(self, sequence: Prefix) -> int:
        """The length of the longest cached prefix; uses nothing."""
        return max((len(p) for p in self._path(sequence) if p in self._entries), default=0)

    def insert(self, sequence: Prefix, pages: Iterable[int]) -> None:
        """Caches what is missing of the whole pages of `sequence`; `pages` are those missing, or more."""
        missing = self._path(sequence)[self.cached_length(sequence) // self._size :]
        for prefix, page in zip(missing, pages, strict=False):
            self._entries[prefix] = Entry(page, 0)
        self._use(sequence)

    def evict(self, count: int) -> list[int]:
        """Evicts that many pages, each the least recently used of those without locks that no other extends."""
        evicted = []
        for _ in range(count):
            inner = {p[: -self._size] for p in self._entries}
            leaves = [p for p, e in self._entries.items() if not e.locks and p not in inner]
            evicted.append(self._entries.pop(min(leaves, key=lambda p: self._entries[p].used)).page)
        return evicted

    def eviction_order(self) -> list[int]:
        """The pages without locks as `evict` would take them all; uses nothing."""
        unlocked = [(e.used, -len(p), e.page) for p, e in self._entries.items() if not e.locks]
        return [page for _, _, page in sorted(unlocked)]

    def lock(self, handle: Handle) -> None:
        """One more lock on every page of the handle's path. Raises StaleHandle."""
        self.check(handle)
        handle.locks += 1
        for prefix in self._path(handle.prefix):
            self._entries[prefix].locks += 1

    def unlock(self, handle: Handle) -> None:
        """Takes one lock of this handle back. Raises StaleHandle, NotLocked."""
        self.check_locked(handle)
        handle.locks -= 1
        for prefix in self._path(handle.prefix):
            self._entries[prefix].locks -= 1
        self._use(handle.prefix)

    def check(self, handle: Handle) -> None:
        """Raises StaleHandle."""
        if (self._entries.get(handle.prefix) if handle.prefix else self._root) is not handle.entry:
            raise StaleHandle(f"the handle of {list(handle.prefix)} is stale")

    def check_locked(self, handle: Handle) -> None:
        """Raises StaleHandle, NotLocked."""
        self.check(handle)
        if not handle.locks:
            raise NotLocked(f"the handle of {list(handle.prefix)} is not locked")

    def counts(self) -> tuple[int, int]:
        """Returns the numbers of evictable and of protected pages."""
        evictable = sum(not entry.locks for entry in self._entries.values())
        return evictable, len(self._entries) - evictable

    def entries(self) -> dict[Prefix, tuple[int, int]]:
        """Every entry with its page and the number of locks on paths through it."""
        return {prefix: (entry.page, entry.locks) for prefix, entry in self._entries.items()}

    def _path(self, sequence: Prefix) -> list[Prefix]:
        return [sequence[:end] for end in range(self._size, len(sequence) + 1, self._size)]

    def _use(self, sequence: Prefix) -> None:
        self._clock += 1
        for prefix in self._path(sequence):
            self._entries[prefix].used = self._clock
