"""Faults in what a lookup answers, and in the load that relies on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_tier.contract import HIT, MISS, PENDING, Key, LoadPlan, StorePlan
from kvlockstep.reference.kv_tier.tier import Chunk, KVTier

Answer = Literal["miss", "pending", "hit"]


@fault("tier-key-without-adapter", law="visible_when_written", seen=("LMCache#2961",))
class KeyWithoutAdapter(KVTier):
    """A lookup looks for the hash alone, so it finds the chunk of another adapter."""

    def lookup(self, key: Key, owner: str) -> Answer:
        alike = (other for other in self._chunks if other.hash == key.hash)
        return super().lookup(key if key in self._chunks else next(alike, key), owner)


@fault("tier-hit-before-written", law="visible_when_written", seen=("vllm#45704",))
class HitBeforeWritten(KVTier):
    """A chunk is a hit as soon as its store has begun."""

    def lookup(self, key: Key, owner: str) -> Answer:
        return HIT if super().lookup(key, owner) == PENDING else super().lookup(key, owner)


@fault("tier-pending-for-ever", law="visible_when_written", seen=("dynamo#3730",))
class PendingForEver(KVTier):
    """A store that fails leaves its keys in the table of what is in flight, and they stay pending."""

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self._awaited: set[Key] = set()

    def _settle(self, key: Key, chunk: Chunk, ok: bool) -> None:
        super()._settle(key, chunk, ok)
        if not ok:
            self._awaited.add(key)

    def lookup(self, key: Key, owner: str) -> Answer:
        answer = super().lookup(key, owner)
        return PENDING if answer == MISS and key in self._awaited else answer


@fault("tier-hit-not-backed", law="backed", seen=("vllm#42289",))
class HitNotBacked(KVTier):
    """A load needs a free unit to work in, and refuses without one, whatever lookup promised."""

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        return super().load(keys, owner) if self._free else None


@fault("tier-load-without-last", law="backed", seen=("LMCache#5151",))
class LoadWithoutLast(KVTier):
    """A load of several chunks takes the path for a tail, and plans no unit for the last one."""

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        plan = super().load(keys, owner)
        return plan and plan._replace(units=dict(list(plan.units.items())[: len(keys) - (len(keys) > 1)]))


@fault("tier-load-other-unit", law="content_equality", seen=("LMCache#4921",))
class LoadOtherUnit(KVTier):
    """The units of a load are looked up by their place in the load, not in the tier."""

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        plan = super().load(keys, owner)
        stored = [chunk.unit for chunk in self._chunks.values() if chunk.stored]
        return plan and plan._replace(units=dict(zip(keys, sorted(stored), strict=False)))


@fault("tier-ghost-hit", law="evicted_exact", seen=("mutant",))
class GhostHit(KVTier):
    """The policy remembers evicted keys, and a lookup takes such a memory for the chunk."""

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self._ghosts: set[Key] = set()

    def _evict(self, key: Key) -> None:
        super()._evict(key)
        self._ghosts.add(key)

    def lookup(self, key: Key, owner: str) -> Answer:
        answer = super().lookup(key, owner)
        return HIT if answer == MISS and key in self._ghosts else answer


@fault("tier-touch-forgets", law="evicted_exact", seen=("mutant",))
class TouchForgets(KVTier):
    """A touch takes a chunk out of the index to move it, and does not put the last one back."""

    def touch(self, keys: Sequence[Key]) -> None:
        super().touch(keys)
        if len(keys) > 1 and keys[-1] in self._chunks and self._chunks[keys[-1]].stored:
            self._hidden = keys[-1]

    def lookup(self, key: Key, owner: str) -> Answer:
        return MISS if key == getattr(self, "_hidden", None) else super().lookup(key, owner)


@fault("tier-stored-once", law="plan_exact", seen=("vllm#47235",))
class StoredOnce(KVTier):
    """A chunk that was stored once is never stored again, although it was evicted meanwhile."""

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self._ever: set[Key] = set()

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        plan = super().store([key for key in keys if key not in self._ever], owner)
        self._ever.update(() if plan is None else plan.units)
        return plan


@fault("tier-pending-raises", law="error_contract", seen=("mutant",))
class LookupRaises(KVTier):
    """A lookup of a chunk that is being stored reads a size that is not known yet."""

    def lookup(self, key: Key, owner: str) -> Answer:
        sizes: dict[Key, Any] = {key: chunk.unit for key, chunk in self._chunks.items() if chunk.stored}
        return super().lookup(key, owner) if key not in self._chunks or sizes[key] >= 0 else MISS
