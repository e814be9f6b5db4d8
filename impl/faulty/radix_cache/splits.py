"""Faults of radix_cache: splitting a node, and rendering the tree."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.radix_cache.nodes import Nodes, with_tree
from kvlockstep.reference.radix_cache import RadixCache
from kvlockstep.reference.radix_cache.contract import RadixMatch
from kvlockstep.reference.radix_cache.tree import Entry, Prefix


@fault("radix-split-unlocks", law="refcount_exact", seen=("mutant",), make=with_tree)
class SplitLosesLocks(Nodes):
    """Splitting a node leaves its upper part without locks."""

    def split(self, prefix: Prefix, upper: list[Entry], used: list[int]) -> None:
        super().split(prefix, upper, used)
        for entry in upper:
            entry.locks = 0


@fault("radix-split-doubles", law="refcount_exact", seen=("mutant",), make=with_tree)
class SplitDoublesLocks(Nodes):
    """The upper part of a split node gets twice the locks of the lower part."""

    def split(self, prefix: Prefix, upper: list[Entry], used: list[int]) -> None:
        super().split(prefix, upper, used)
        for entry in upper:
            entry.locks *= 2


@fault("radix-split-drops", law="conservation", seen=("mlc-llm#2798",), make=with_tree)
class SplitDropsTail(Nodes):
    """Splitting a node drops its lower part from the tree."""

    def split(self, prefix: Prefix, upper: list[Entry], used: list[int]) -> None:
        super().split(prefix, upper, used)
        node = self._node_of
        lost = [
            p for p in self._entries if len(p) > len(prefix) and p[: len(prefix)] == prefix and p in self._below(prefix)
        ]
        for p in lost:
            node.pop(self._entries.pop(p))

    def _below(self, prefix: Prefix) -> list[Prefix]:
        return [p for p in self._entries if p[: len(prefix)] == prefix and not self._entries[p].locks]


@fault("radix-split-age", law="eviction_order", seen=("seed 001",), make=with_tree)
class SplitKeepsAge(Nodes):
    """The part of a node in which a match or an insert ends keeps its old age."""

    def split(self, prefix: Prefix, upper: list[Entry], used: list[int]) -> None:
        super().split(prefix, upper, used)
        for entry, age in zip(upper, used, strict=True):
            entry.used = age


@fault("radix-shows-splits", law="write_isolation", seen=("seed 001",))
class ShowsSplits(RadixCache):
    """A match that splits a node changes the rendered tree."""

    def reset(self) -> None:
        super().reset()
        self._splits: set[Prefix] = set()

    def match_prefix(self, tokens: Sequence[int]) -> RadixMatch:
        match = super().match_prefix(tokens)
        if any(p[: match.length] == match.handle.prefix and len(p) > match.length for p in self._tree.entries()):
            self._splits.add(match.handle.prefix)
        return match

    def render(self) -> str:
        return "\n".join([super().render(), *(f"split at {list(prefix)}" for prefix in sorted(self._splits))])


@fault("radix-render-cut", law="agreement", seen=("seed 001",))
class RenderIsCut(RadixCache):
    """Rendering cuts lines at thirty characters."""

    def render(self) -> str:
        first, *lines = super().render().split("\n")
        return "\n".join([first, *[line[:30] for line in lines]])
