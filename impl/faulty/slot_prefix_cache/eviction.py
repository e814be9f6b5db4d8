"""Faults of slot_prefix_cache: which entries are evicted, and when."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.slot_prefix_cache import SlotPrefixCache
from kvlockstep.reference.slot_prefix_cache.cache import Prefix, Row
from kvlockstep.reference.slot_prefix_cache.contract import Match


@fault("prefix-evicts-interior", law="conservation", seen=("seed 000",))
class EvictsInterior(SlotPrefixCache):
    """Eviction takes the least recent entry and all its descendants, even pinned ones."""

    def _evict(self) -> None:
        while len(self._used) > self._capacity:
            free = [p for p in self._used if not self._pins[p]]
            if not free:
                return
            victim = min(free, key=lambda p: (self._used[p], len(p)))
            for slot in [s for s, row in self._rows.items() if row.tokens[: len(victim)] == victim]:
                row = self._rows.pop(slot)
                if len(victim) > 1:
                    self._rows[slot] = Row(victim[:-1], row.version, row.inserted)
            self._used = {p: t for p, t in self._used.items() if p[: len(victim)] != victim}


@fault("prefix-loops-pinned", law="termination", seen=("seed 000",))
class LoopsWhenPinned(SlotPrefixCache):
    """insert never returns when every entry over the capacity is pinned."""

    def _evict(self) -> None:
        while len(self._used) > self._capacity:
            super()._evict()


@fault("prefix-find-keeps-age", law="eviction_order", seen=("mutant",))
class FindKeepsAge(SlotPrefixCache):
    """A hit does not refresh the entry, so eviction treats it as unused."""

    def find(self, tokens: Sequence[int]) -> Match:
        used = dict(self._used)
        match = super().find(tokens)
        self._used = used
        return match


@fault("prefix-refreshes-end", law="eviction_order", seen=("mutant",))
class RefreshesOnlyTheEnd(SlotPrefixCache):
    """A hit refreshes its last entry but not the entries on the path to it."""

    def find(self, tokens: Sequence[int]) -> Match:
        used = dict(self._used)
        match = super().find(tokens)
        prefix = tuple(tokens[: match.length])
        self._used = {p: t if p == prefix else used[p] for p, t in self._used.items()}
        return match


@fault("prefix-evicts-more", law="conservation", seen=("sglang#4987",))
class EvictsOneTooMany(SlotPrefixCache):
    """Eviction keeps the cache one entry below its capacity."""

    def _evict(self) -> None:
        self._capacity -= 1
        super()._evict()
        self._capacity += 1


@fault("prefix-insert-keeps-age", law="eviction_order", seen=("seed 000",))
class InsertKeepsAge(SlotPrefixCache):
    """Inserting an entry again does not refresh it."""

    _known: frozenset[Prefix] = frozenset()

    def insert(self, tokens: Sequence[int], slot: int, version: int, pinned: bool = False) -> None:
        self._known = frozenset(self._used)
        super().insert(tokens, slot, version, pinned)
        self._known = frozenset()

    def _touch(self, prefix: Prefix) -> None:
        ages = {p: t for p, t in self._used.items() if p in self._known}
        super()._touch(prefix)
        self._used.update(ages)


@fault("prefix-orphans-count", law="conservation", seen=("seed 000", "sglang#22592"))
class OrphansCount(SlotPrefixCache):
    """Descendants of an evicted entry are unreachable but still count against the capacity."""

    def __init__(self, capacity: int, slots: int, positions: int) -> None:
        super().__init__(capacity, slots, positions)
        self._orphans = 0

    def _evict(self) -> None:
        before = len(self._used)
        self._capacity -= self._orphans
        super()._evict()
        self._capacity += self._orphans
        self._orphans = min(self._capacity, self._orphans + max(0, before - len(self._used) - 1))


@fault("prefix-scan-refreshes", law="eviction_order", seen=("seed 000",))
class ScanRefreshes(SlotPrefixCache):
    """Eviction moves the pinned entries that it skips to the most recent end."""

    def _evict(self) -> None:
        over = len(self._used) > self._capacity
        super()._evict()
        if over:
            self._clock += 1
            for prefix in self._pins:
                self._used[prefix] = self._clock


@fault("prefix-keeps-one", law="accounting", seen=("ik_llama.cpp#2320",))
class KeepsOneEntry(SlotPrefixCache):
    """Eviction always keeps one entry, even if the capacity is 0."""

    def _evict(self) -> None:
        capacity, self._capacity = self._capacity, max(1, self._capacity)
        super()._evict()
        self._capacity = capacity


@fault("prefix-evicts-by-age", law="structure", seen=("Megatron-LM#5822",))
class EvictsByAge(SlotPrefixCache):
    """Eviction goes by age alone and removes a parent before its child."""

    def _evict(self) -> None:
        while len(self._used) > self._capacity:
            path = {p[:n] for p in self._pins for n in range(1, len(p) + 1)}
            free = [p for p in self._used if p not in path]
            if not free:
                return
            del self._used[min(free, key=lambda p: (self._used[p], len(p)))]

    def entries(self) -> dict[Prefix, tuple[int, int]]:
        return {p: entry for p, entry in super().entries().items() if p in self._used}
