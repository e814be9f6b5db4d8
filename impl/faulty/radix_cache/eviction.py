"""Faults of radix_cache: which pages are evicted, and how many."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.radix_cache.nodes import Nodes, with_tree
from kvlockstep.reference.radix_cache import RadixCache
from kvlockstep.reference.radix_cache.contract import RadixSizes
from kvlockstep.reference.radix_cache.tree import RadixTree


@fault("radix-evict-locked", law="eviction_safety", seen=("mini-sglang#52",), make=with_tree)
class EvictsLocked(RadixTree):
    """Eviction takes locked pages."""

    def evict(self, count: int) -> list[int]:
        locks = {prefix: entry.locks for prefix, entry in self._entries.items()}
        for entry in self._entries.values():
            entry.locks = 0
        evicted = super().evict(count)
        for prefix, entry in self._entries.items():
            entry.locks = locks[prefix]
        return evicted


@fault("radix-evict-inner", law="structure", seen=("Megatron-LM#5822",), make=with_tree)
class EvictsAnywhere(RadixTree):
    """Eviction takes the least recently used page even if other pages extend it."""

    def evict(self, count: int) -> list[int]:
        evicted = []
        for _ in range(count):
            free = [p for p, entry in self._entries.items() if not entry.locks]
            evicted.append(self._entries.pop(min(free, key=lambda p: (self._entries[p].used, len(p)))).page)
        return evicted


@fault("radix-evict-newest", law="eviction_order", seen=("mutant",), make=with_tree)
class EvictsNewest(RadixTree):
    """Eviction takes the most recently used leaf."""

    def evict(self, count: int) -> list[int]:
        for entry in self._entries.values():
            entry.used = -entry.used
        evicted = super().evict(count)
        for entry in self._entries.values():
            entry.used = -entry.used
        return evicted


@fault("radix-evict-early", law="conservation", seen=("xllm#55",), make=with_tree)
class EvictsOneFewer(RadixTree):
    """An eviction of several pages stops one page early."""

    def evict(self, count: int) -> list[int]:
        return super().evict(count - (count > 1))


@fault("radix-evict-late", law="conservation", seen=("seed 001",), make=with_tree)
class EvictsWholeRuns(Nodes):
    """Eviction removes whole nodes and so frees more pages than asked for."""

    def evict(self, count: int) -> list[int]:
        evicted: list[int] = []
        while len(evicted) < count:
            inner = {p[: -self._size] for p in self._entries}
            leaves = [p for p, e in self._entries.items() if not e.locks and p not in inner]
            leaf = min(leaves, key=lambda p: self._entries[p].used)
            node = self._node_of[self._entries[leaf]]
            for prefix in reversed(self._path(leaf)):
                if self._node_of[self._entries[prefix]] is node and not self._entries[prefix].locks:
                    evicted.append(self._entries.pop(prefix).page)
        return evicted


@fault("radix-leaves-only", law="accounting", seen=("mutant",), make=with_tree)
class LeavesCountOnly(RadixTree):
    """The evictable size counts only leaves."""

    def counts(self) -> tuple[int, int]:
        inner = {p[: -self._size] for p in self._entries}
        evictable = sum(not e.locks and p not in inner for p, e in self._entries.items())
        return evictable, len(self._entries) - evictable


@fault("radix-counts-tokens", law="accounting", seen=("sglang#10637 (b)", "sglang#34823"))
class CountsTokens(RadixCache):
    """The evictable size also counts the tokens of partial pages, which are not cached."""

    def reset(self) -> None:
        super().reset()
        self._drift = 0

    def insert_prefix(self, tokens: Sequence[int], slots: Sequence[int]) -> int:
        already = super().insert_prefix(tokens, slots)
        self._drift += len(tokens) % self._size if len(tokens) > already else 0
        return already

    def sizes(self) -> RadixSizes:
        sizes = super().sizes()
        return sizes._replace(evictable=sizes.evictable + self._drift)


@fault("radix-evict-asserts", law="error_contract", seen=("seed 001",))
class EvictAsserts(RadixCache):
    """Evicting more than is evictable raises AssertionError."""

    def evict(self, n: int) -> list[int]:
        evictable, _ = self._tree.counts()
        assert n <= evictable * self._size, "cannot evict so much"
        return super().evict(n)


@fault("radix-evict-loops", law="termination", seen=("sglang#36770",))
class EvictLoops(RadixCache):
    """Eviction loops forever when locked pages keep it from freeing enough."""

    def evict(self, n: int) -> list[int]:
        evicted: list[int] = []
        while len(evicted) < n:
            evictable, _ = self._tree.counts()
            evicted += super().evict(min(self._size, evictable * self._size))
        return evicted if n > 0 else super().evict(n)


@fault("radix-counts-locked", law="conservation", seen=("xllm#55",), make=with_tree)
class CountsLocked(RadixTree):
    """Eviction counts the locked leaves that it skips as evicted."""

    def evict(self, count: int) -> list[int]:
        inner = {p[: -self._size] for p in self._entries}
        locked = sum(e.locks > 0 for p, e in self._entries.items() if p not in inner)
        return super().evict(max(0, count - locked))


@fault("radix-stale-order", law="eviction_order", seen=("sglang#22592",))
class StaleInOrder(RadixCache):
    """eviction_order still lists a page that an allocation has evicted."""

    def reset(self) -> None:
        super().reset()
        self._stale: list[int] = []

    def allocate(self, n: int) -> list[int]:
        order = self._tree.eviction_order()
        slots = super().allocate(n)
        self._stale += [page for page in order if page not in self._tree.eviction_order()][-1:]
        return slots

    def eviction_order(self) -> list[int]:
        return self._slots(self._stale[:1]) + super().eviction_order()


@fault("radix-evicts-negative", law="error_contract", seen=("seed 001",))
class EvictsNegative(RadixCache):
    """Evicting a negative number of tokens raises an error, because nothing was evicted."""

    def evict(self, n: int) -> list[int]:
        if n < 0:
            raise RuntimeError("nothing to join")
        return super().evict(n)
