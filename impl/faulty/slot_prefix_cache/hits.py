"""Faults of slot_prefix_cache: finding the longest cached prefix."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.slot_prefix_cache import SlotPrefixCache
from kvlockstep.reference.slot_prefix_cache.cache import Prefix
from kvlockstep.reference.slot_prefix_cache.contract import MISS, Match


@fault("prefix-finds-evicted", law="prefix_soundness", seen=("seed 000",))
class FindsEvicted(SlotPrefixCache):
    """An evicted entry stays in the tree as a tombstone, and find still returns it."""

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


@fault("prefix-oldest-slot", law="prefix_soundness", seen=("mutant",))
class AnswersOldest(SlotPrefixCache):
    """Of several slots that hold a prefix, find returns the oldest instead of the newest."""

    def _slot_of(self, prefix: Prefix) -> int:
        holders = [s for s, row in self._rows.items() if row.tokens[: len(prefix)] == prefix]
        return min(holders, key=lambda s: self._rows[s].inserted)


@fault("prefix-hit-plus-one", law="prefix_soundness", seen=("vllm#11186",))
class MatchesOneMore(SlotPrefixCache):
    """A hit reports one token more than is cached."""

    def find(self, tokens: Sequence[int]) -> Match:
        match = super().find(tokens)
        return match if match == MISS or match.length == len(tokens) else match._replace(length=match.length + 1)


@fault("prefix-hit-minus-one", law="prefix_completeness", seen=("mutant",))
class StopsOneShort(SlotPrefixCache):
    """find ignores the last token of its query, so it misses the longest entry."""

    def find(self, tokens: Sequence[int]) -> Match:
        return super().find(tokens[:-1])


@fault("prefix-find-crashes", law="error_contract", seen=("seed 000",))
class FindCrashes(SlotPrefixCache):
    """find raises when it meets an evicted entry that still hangs in the tree."""

    def __init__(self, capacity: int, slots: int, positions: int) -> None:
        super().__init__(capacity, slots, positions)
        self._tombs: set[Prefix] = set()

    def _evict(self) -> None:
        before = set(self._used)
        super()._evict()
        self._tombs = (self._tombs | before) - set(self._used)

    def find(self, tokens: Sequence[int]) -> Match:
        match = super().find(tokens)
        longer = tuple(tokens[: match.length + 1])
        if len(longer) > match.length and longer in self._tombs:
            raise KeyError(longer)
        return match


@fault("prefix-slot-zero", law="prefix_completeness", seen=("llama.cpp#21510",))
class SlotZeroIsNone(SlotPrefixCache):
    """An entry in slot 0 is never found, because 0 is taken for no slot."""

    def find(self, tokens: Sequence[int]) -> Match:
        match = super().find(tokens)
        return match if match.slot else MISS
