"""Faults of slot_prefix_cache: pins."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.errors import NotCached, Pinned
from kvlockstep.reference.slot_prefix_cache import SlotPrefixCache
from kvlockstep.reference.slot_prefix_cache.cache import Row


@fault("prefix-pin-ignored", law="eviction_safety", seen=("seed 000",))
class PinOnlyItself(SlotPrefixCache):
    """A slot can be overwritten even if the entry in it is pinned."""

    def _set_row(self, slot: int, row: Row | None) -> None:
        pins, self._pins = self._pins, type(self._pins)()
        try:
            super()._set_row(slot, row)
        finally:
            self._pins = pins


@fault("prefix-release-free", law="no_double_free", seen=("seed 000",))
class ReleaseWithoutPin(SlotPrefixCache):
    """Releasing an entry that is not pinned is silently accepted."""

    def release(self, tokens: Sequence[int]) -> None:
        prefix = tuple(tokens)
        if prefix in self._pins or prefix not in self._used:
            super().release(tokens)


@fault("prefix-pin-unknown", law="eviction_safety", seen=("seed 000",))
class PinsWhatIsNotCached(SlotPrefixCache):
    """Pinning a prefix that is not cached silently does nothing."""

    def pin(self, tokens: Sequence[int]) -> None:
        try:
            super().pin(tokens)
        except NotCached:
            return


@fault("prefix-insert-pins", law="accounting", seen=("seed 000",))
class InsertPins(SlotPrefixCache):
    """Every insert pins its entry, whether or not the caller asks for a pin."""

    def insert(self, tokens: Sequence[int], slot: int, version: int, pinned: bool = False) -> None:
        super().insert(tokens, slot, version, True)


@fault("prefix-release-keeps", law="accounting", seen=("seed 000", "LMCache#1130"))
class ReleaseKeepsOver(SlotPrefixCache):
    """A release does not evict what exceeds the capacity; only the next insert does."""

    def release(self, tokens: Sequence[int]) -> None:
        capacity, self._capacity = self._capacity, len(self._used)
        try:
            super().release(tokens)
        finally:
            self._capacity = capacity


@fault("prefix-pinned-here", law="admission_honesty", seen=("mutant",))
class PinnedInThisSlot(SlotPrefixCache):
    """A slot that holds a pinned prefix is refused even if another slot also holds that prefix."""

    def _set_row(self, slot: int, row: Row | None) -> None:
        tokens = row.tokens if row is not None else ()
        old = self._rows[slot].tokens if slot in self._rows else ()
        if any(old[: len(p)] == p != tokens[: len(p)] for p in self._pins):
            raise Pinned(f"slot={slot} holds a pinned prefix")
        super()._set_row(slot, row)
