"""Variants of kv_tier: tiers that keep the contract in a way of their own. No law may blame them."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Literal

from kvlockstep.reference.kv_tier.contract import HIT, MISS, Key, LoadPlan, StorePlan
from kvlockstep.reference.kv_tier.tier import KVTier


class FirstInFirstOut(KVTier):
    """Evicts the chunk that was stored first, however often it is used."""

    def touch(self, keys: Sequence[Key]) -> None:
        pass


class MostRecentFirst(KVTier):
    """Evicts the chunk that was used last."""

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        self._chunks = dict(reversed(self._chunks.items()))
        plan = super().store(keys, owner)
        if plan is None:
            self._chunks = dict(reversed(self._chunks.items()))
            return None
        old = [key for key in self._chunks if key not in plan.units]
        self._chunks = {key: self._chunks[key] for key in [*reversed(old), *plan.units]}
        return plan


class DropsThirdChunk(KVTier):
    """Stores only two of three chunks."""

    skips = True

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        return super().store([key for key in keys if key.hash % 3 != 2], owner)


class SaysMissUntilStored(KVTier):
    """Does not show what is being stored."""

    pending_visible = False

    def lookup(self, key: Key, owner: str) -> Literal["miss", "hit"]:
        return HIT if super().lookup(key, owner) == HIT else MISS


class EvictsInPairs(KVTier):
    """Evicts two chunks at a time, as an allocator does that frees whole slabs."""

    evict_batch = 2

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        plan = super().store(keys, owner)
        if plan is None or len(plan.evicted) % 2 == 0:
            return plan
        more = [key for key in self._chunks if key not in keys and self._evictable(key)][:1]
        for key in more:
            self._evict(key)
        return plan._replace(evicted=[*plan.evicted, *more])


class EvictsBeforeRefusal(KVTier):
    """Evicts chunk by chunk, and is refused when nothing more can go."""

    refusal_evicts = True

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        plan = super().store(keys, owner)
        if plan is None:
            for key in [key for key in self._chunks if key not in keys and self._evictable(key)]:
                self._evict(key)
        return plan


class ResetsWhenQuiet(KVTier):
    """Has no reset while a plan is in flight, and announces nothing."""

    reset_in_flight = announces = False


class BarelyATier(KVTier):
    """Has neither a reset nor extra keys nor pins."""

    can_reset = reset_in_flight = extra_key = can_pin = False


class NamesItsPlans(KVTier):
    """Its plans have names, and what it evicted comes as an iterator."""

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        plan = super().store(keys, owner)
        return plan and StorePlan(f"{owner}-{plan.id}", plan.units, iter(plan.evicted))  # type: ignore[arg-type]

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        plan = super().load(keys, owner)
        return plan and LoadPlan(f"{owner}-{plan.id}", plan.units)

    def complete(self, plan: Hashable, ok: bool) -> None:
        super().complete(int(str(plan).partition("-")[2]), ok)


class ReadsAtOnce(KVTier):
    """Holds the bytes. A load copies them at once, and holds no unit afterwards."""

    holds_bytes = True
    loads_hold = False

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self._bytes: dict[int, bytes] = {}
        self._copies: dict[Hashable, dict[Key, bytes]] = {}

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        plan = super().load(keys, owner)
        if plan is not None:
            self._copies[plan.id] = {key: self._bytes[unit] for key, unit in plan.units.items()}
            super().complete(plan.id, True)
        return plan

    def write(self, plan: Hashable, key: Key, data: bytes) -> None:
        self._bytes[self._plans[plan].units[key]] = data

    def read(self, plan: Hashable, key: Key) -> bytes | None:
        return self._copies[plan][key]

    def complete(self, plan: Hashable, ok: bool) -> None:
        super().complete(plan, ok)
        self._copies.pop(plan, None)


VARIANTS: dict[str, type[KVTier]] = {
    re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower(): tier
    for name, tier in list(globals().items())
    if isinstance(tier, type) and issubclass(tier, KVTier) and tier is not KVTier
}
"""Name to factory; FirstInFirstOut is `first-in-first-out`."""
