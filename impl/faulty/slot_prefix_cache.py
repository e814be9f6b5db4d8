"""Faults of slot_prefix_cache."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.contracts import MISS, Match, NotCached
from kvlockstep.reference.slot_prefix_cache import Prefix, Row, SlotPrefixCache


class EvictsInterior(SlotPrefixCache):
    """Evicts the least recent entry wherever it stands, and everything below it with it, pinned or not."""

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


class FindsEvicted(SlotPrefixCache):
    """An evicted entry stays as a tombstone that find still walks into."""

    def __init__(self, capacity: int, slots: int, positions: int) -> None:
        super().__init__(capacity, slots, positions)
        self._tombs: dict[Prefix, tuple[int, int]] = {}

    def _evict(self) -> None:
        before = self.entries()
        super()._evict()
        self._tombs.update({p: e for p, e in before.items() if p not in self._used})

    def find(self, tokens: Sequence[int]) -> Match:
        match = super().find(tokens)
        longer = tuple(tokens[: match.length + 1])
        if len(longer) > match.length and longer in self._tombs:
            return Match(len(longer), *self._tombs[longer])
        return match


class ReuseKeepsLonger(SlotPrefixCache):
    """Reusing a slot in place for a shorter prefix leaves its longer entries, though the slot is written over."""

    def reuse(self, slot: int, length: int) -> None:
        self._check_slot(slot)


class LoopsWhenPinned(SlotPrefixCache):
    """Eviction tries again as long as the cache is over capacity."""

    def _evict(self) -> None:
        while len(self._used) > self._capacity:
            super()._evict()


class PinOnlyItself(SlotPrefixCache):
    """A pinned entry survives a full cache only until its slot is wanted."""

    def _set_row(self, slot: int, row: Row | None) -> None:
        pins, self._pins = self._pins, type(self._pins)()
        try:
            super()._set_row(slot, row)
        finally:
            self._pins = pins


class FindKeepsAge(SlotPrefixCache):
    """A hit does not count as a use."""

    def find(self, tokens: Sequence[int]) -> Match:
        used = dict(self._used)
        match = super().find(tokens)
        self._used = used
        return match


class RefreshesOnlyTheEnd(SlotPrefixCache):
    """A hit refreshes its last entry and not the path to it."""

    def find(self, tokens: Sequence[int]) -> Match:
        used = dict(self._used)
        match = super().find(tokens)
        prefix = tuple(tokens[: match.length])
        self._used = {p: t if p == prefix else used[p] for p, t in self._used.items()}
        return match


class AnswersOldest(SlotPrefixCache):
    """Of several slots with the prefix the first one answers."""

    def _slot_of(self, prefix: Prefix) -> int:
        holders = [s for s, row in self._rows.items() if row.tokens[: len(prefix)] == prefix]
        return min(holders, key=lambda s: self._rows[s].inserted)


class CopyOneShort(SlotPrefixCache):
    """copy_kv leaves out the last position."""

    def copy_kv(self, tokens: Sequence[int], target: int) -> int:
        self._check_slot(target)
        last = self._kv[target][len(tokens) - 1] if 0 < len(tokens) <= self._positions else 0
        source = super().copy_kv(tokens, target)
        self._kv[target][len(tokens) - 1] = last
        return source


class CopyKeepsTargetEntries(SlotPrefixCache):
    """What the target slot held before the copy can still be found."""

    def copy_kv(self, tokens: Sequence[int], target: int) -> int:
        rows, used = dict(self._rows), dict(self._used)
        source = super().copy_kv(tokens, target)
        self._rows, self._used = rows, used
        return source


class ReleaseWithoutPin(SlotPrefixCache):
    """Releasing an entry without a pin takes one that is not there."""

    def release(self, tokens: Sequence[int]) -> None:
        prefix = tuple(tokens)
        self._check_entry("release", prefix)
        self._pins[prefix] = max(0, self._pins[prefix] - 1)
        self._evict()


class PinsWhatIsNotCached(SlotPrefixCache):
    """Pinning an unknown prefix silently does nothing."""

    def pin(self, tokens: Sequence[int]) -> None:
        try:
            super().pin(tokens)
        except NotCached:
            return


class MatchesOneMore(SlotPrefixCache):
    """A hit counts one token more than is cached."""

    def find(self, tokens: Sequence[int]) -> Match:
        match = super().find(tokens)
        return match if match == MISS or match.length == len(tokens) else match._replace(length=match.length + 1)


class StopsOneShort(SlotPrefixCache):
    """The longest entry is not looked at."""

    def find(self, tokens: Sequence[int]) -> Match:
        return super().find(tokens[:-1])


class EvictsOneTooMany(SlotPrefixCache):
    """The cache is kept one below its capacity."""

    def _evict(self) -> None:
        self._capacity -= 1
        super()._evict()
        self._capacity += 1


FAULTS = faults_of(
    "slot_prefix_cache",
    ("prefix-evicts-interior", EvictsInterior, "eviction cuts a pinned descendant", ("seed 000",), "eviction_safety"),
    ("prefix-finds-evicted", FindsEvicted, "a tombstone is found", ("seed 000",), "prefix_soundness"),
    ("prefix-reuse-keeps", ReuseKeepsLonger, "in-place reuse leaves longer entries", ("seed 000",), "content_equality"),
    ("prefix-loops-pinned", LoopsWhenPinned, "insert never returns", ("seed 000",), "termination"),
    ("prefix-pin-ignored", PinOnlyItself, "a pinned entry is overwritten", ("seed 000",), "eviction_safety"),
    ("prefix-find-keeps-age", FindKeepsAge, "a hit does not refresh", ("sglang#31643",), "eviction_order"),
    ("prefix-refreshes-end", RefreshesOnlyTheEnd, "a hit refreshes only its end", ("sglang#31643",), "eviction_order"),
    ("prefix-oldest-slot", AnswersOldest, "the first slot answers", ("mutant",), "version_current"),
    ("prefix-copy-short", CopyOneShort, "a copy lacks its last position", ("LMCache#4921",), "content_equality"),
    ("prefix-copy-keeps", CopyKeepsTargetEntries, "the copy target's entries stay", ("seed 000",), "content_equality"),
    ("prefix-release-free", ReleaseWithoutPin, "a release without a pin", ("seed 000",), "agreement"),
    ("prefix-pin-unknown", PinsWhatIsNotCached, "a pin that pins nothing", ("seed 000",), "eviction_safety"),
    ("prefix-hit-plus-one", MatchesOneMore, "a hit counts one token too many", ("vllm#11186",), "prefix_soundness"),
    ("prefix-hit-minus-one", StopsOneShort, "the longest entry is missed", ("vllm#57610",), "prefix_completeness"),
    ("prefix-evicts-more", EvictsOneTooMany, "evicts below capacity", ("sglang#4987",), "conservation"),
)
