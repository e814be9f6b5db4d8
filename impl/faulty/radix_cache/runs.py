"""What faults of radix_cache share: a tree that remembers which pages are one node."""

from __future__ import annotations

from collections.abc import Iterable

from kvlockstep.reference.radix_cache import RadixCache
from kvlockstep.reference.radix_cache.tree import Entry, Handle, Prefix, RadixTree


class Runs(RadixTree):
    """A tree that knows which pages were cached at once and not split since, as a compressed one does."""

    def __init__(self, page_size: int) -> None:
        super().__init__(page_size)
        self._run_of: dict[Entry, object] = {}

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        prefix = sequence[: self.cached_length(sequence)]
        upper = self._cut_by(prefix)
        used = [entry.used for entry in upper]
        found = super().match(sequence)
        if upper:
            self.split(prefix, upper, used)
        return found

    def insert(self, sequence: Prefix, pages: Iterable[int]) -> None:
        prefix = sequence[: self.cached_length(sequence)]
        upper = self._cut_by(prefix)
        used = [entry.used for entry in upper]
        run = object()
        super().insert(sequence, pages)
        for p in self._path(sequence):
            self._run_of.setdefault(self._entries[p], run)
        if upper and len(self._path(sequence)) * self._size > len(prefix):
            self.split(prefix, upper, used)

    def split(self, prefix: Prefix, upper: list[Entry], used: list[int]) -> None:
        """The run of which `upper`, last used at `used`, is the first part is cut at the end of `prefix`."""
        run = object()
        self._run_of.update(dict.fromkeys(upper, run))

    def _cut_by(self, prefix: Prefix) -> list[Entry]:
        """The pages before the end of `prefix` of a run that goes on behind it."""
        if not prefix:
            return []
        run = self._run_of[self._entries[prefix]]
        goes_on = any(p[: -self._size] == prefix and self._run_of[e] is run for p, e in self._entries.items())
        return [e for p in self._path(prefix) if self._run_of[e := self._entries[p]] is run] if goes_on else []


def with_tree(tree: type[RadixTree]) -> type[RadixCache]:
    """The reference over a faulty tree."""
    return type(tree.__name__, (RadixCache,), {"tree_type": tree, "__doc__": tree.__doc__})
