"""Faults of slot_prefix_cache: inserting into slots, and reusing them."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.slot_prefix_cache import SlotPrefixCache
from kvlockstep.reference.slot_prefix_cache.cache import Prefix, Row
from kvlockstep.reference.slot_prefix_cache.contract import MISS, Match


@fault("prefix-reuse-keeps", law="content_equality", seen=("seed 000",))
class ReuseKeepsLonger(SlotPrefixCache):
    """reuse keeps all entries of the slot, even those longer than the prefix that stays."""

    def reuse(self, slot: int, length: int) -> None:
        self._check_slot(slot)


@fault("prefix-inserts-nothing", law="agreement", seen=("seed 000",))
class InsertsNothing(SlotPrefixCache):
    """Inserting an empty sequence creates an entry at the root."""

    def insert(self, tokens: Sequence[int], slot: int, version: int, pinned: bool = False) -> None:
        if len(tokens):
            super().insert(tokens, slot, version, pinned)


@fault("prefix-one-slot", law="conservation", seen=("seed 000",))
class OneSlotAnswers(SlotPrefixCache):
    """An entry remembers only its newest slot and is lost with it, though other slots hold it."""

    def reuse(self, slot: int, length: int) -> None:
        held = [p for p in self._used if self._slot_of(p) == slot and len(p) > length]
        super().reuse(slot, length)
        for other, row in list(self._rows.items()):
            kept = max((n for n in range(len(row.tokens) + 1) if row.tokens[:n] not in held), default=0)
            cut = min([len(p) - 1 for p in held if row.tokens[: len(p)] == p], default=kept)
            if cut < len(row.tokens) and not any(row.tokens[: len(p)] == p for p in self._pins):
                self._set_row(other, row._replace(tokens=row.tokens[:cut]) if cut else None)


@fault("prefix-insert-keeps", law="prefix_soundness", seen=("seed 000",))
class InsertKeepsFormer(SlotPrefixCache):
    """Inserting into a slot keeps its former entries, so overwritten prefixes are still found."""

    def _set_row(self, slot: int, row: Row | None) -> None:
        self._former: dict[Prefix, Match] = getattr(self, "_former", {})
        old = self._rows.get(slot)
        super()._set_row(slot, row)
        if old is not None and row is not None and row.tokens[:1] != old.tokens[:1]:
            self._former[old.tokens] = Match(len(old.tokens), slot, old.version)

    def find(self, tokens: Sequence[int]) -> Match:
        match = super().find(tokens)
        former = getattr(self, "_former", {}).get(tuple(tokens))
        return former if former is not None and match == MISS else match


@fault("prefix-negative-slot", law="agreement", seen=("seed 000",))
class NegativeIsLast(SlotPrefixCache):
    """Slot -1 is accepted and means the last slot."""

    def copy_kv(self, tokens: Sequence[int], target: int) -> int:
        return super().copy_kv(tokens, len(self._kv) - 1 if target == -1 else target)


@fault("prefix-refused-clears", law="atomicity", seen=("Megatron-LM#6091",))
class RefusedInsertClears(SlotPrefixCache):
    """A refused insert erases the slot behind the prefix that is cached already."""

    def insert(self, tokens: Sequence[int], slot: int, version: int, pinned: bool = False) -> None:
        try:
            super().insert(tokens, slot, version, pinned)
        except InvalidArgument:
            kept = len(self._rows[slot].tokens) if slot in self._rows else 0
            self._kv[slot][kept:] = [0] * (self._positions - kept)
            raise


@fault("prefix-keeps-version", law="version_current", seen=("mutant",))
class InsertKeepsVersion(SlotPrefixCache):
    """Inserting a sequence into its own slot again keeps the old version."""

    def _set_row(self, slot: int, row: Row | None) -> None:
        old = self._rows.get(slot)
        same = row is not None and old is not None and row.tokens == old.tokens
        super()._set_row(slot, row._replace(version=old.version) if same and row and old else row)
