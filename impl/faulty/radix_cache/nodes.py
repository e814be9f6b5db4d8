"""What faults of radix_cache share: a tree that knows its nodes."""

from __future__ import annotations

from collections.abc import Iterable

from kvlockstep.reference.radix_cache import RadixCache
from kvlockstep.reference.radix_cache.tree import Entry, Handle, Prefix, RadixTree


class Nodes(RadixTree):
    """A tree that records which pages form one node: those inserted together and not split since."""

    def __init__(self, page_size: int) -> None:
        super().__init__(page_size)
        self._node_of: dict[Entry, object] = {}

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
        node = object()
        super().insert(sequence, pages)
        for p in self._path(sequence):
            self._node_of.setdefault(self._entries[p], node)
        if upper and len(self._path(sequence)) * self._size > len(prefix):
            self.split(prefix, upper, used)

    def split(self, prefix: Prefix, upper: list[Entry], used: list[int]) -> None:
        """Splits a node at the end of `prefix`. `upper` are the pages of its first part, last used at `used`."""
        node = object()
        self._node_of.update(dict.fromkeys(upper, node))

    def _cut_by(self, prefix: Prefix) -> list[Entry]:
        """The pages up to the end of `prefix` in a node that continues behind it."""
        if not prefix:
            return []
        node = self._node_of[self._entries[prefix]]
        goes_on = any(p[: -self._size] == prefix and self._node_of[e] is node for p, e in self._entries.items())
        return [e for p in self._path(prefix) if self._node_of[e := self._entries[p]] is node] if goes_on else []


def with_tree(tree: type[RadixTree]) -> type[RadixCache]:
    """The reference with a faulty tree."""
    return type(tree.__name__, (RadixCache,), {"tree_type": tree, "__doc__": tree.__doc__})
