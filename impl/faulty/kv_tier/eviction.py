"""Faults in how room is made."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_tier.contract import Key, StorePlan
from kvlockstep.reference.kv_tier.tier import KVTier


class KnowsStores(KVTier):
    """Knows while it evicts for a store."""

    _storing = False

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        self._storing = True
        plan = super().store(keys, owner)
        self._storing = False
        return plan


@fault("tier-evicts-pinned", law="pinned", seen=("LMCache#987",))
class EvictsPinned(KnowsStores):
    """An eviction inside of a store looks at plans in flight, and not at pins."""

    def _evictable(self, key: Key) -> bool:
        return super()._evictable(key) or (self._storing and not self._using[self._chunks[key].unit])


@fault("tier-frees-under-reader", law="pinned", seen=("LMCache#3130",))
class FreesUnderReader(KVTier):
    """The eviction of several chunks at once frees their units without a look at who reads them."""

    _several = False

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        new = [key for key in keys if key not in self._chunks]
        self._several = len(new) - len(self._free) > 1
        plan = super().store(keys, owner)
        self._several = False
        return plan

    def _evictable(self, key: Key) -> bool:
        return super()._evictable(key) or (self._several and self._chunks[key].stored)


@fault("tier-evicts-everything", law="eviction_bounded", seen=("sglang#4987",))
class EvictsEverything(KVTier):
    """Asked for one unit, the tier evicts every chunk that it may."""

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        before = set(self._chunks)
        plan = super().store(keys, owner)
        if plan is None or not plan.evicted:
            return plan
        more = [key for key in before if key in self._chunks and key not in keys and self._evictable(key)]
        for key in more:
            self._evict(key)
        return plan._replace(evicted=[*plan.evicted, *more])


@fault("tier-eviction-unsaid", law="evicted_exact", seen=("mutant",))
class EvictionUnsaid(KVTier):
    """A store does not say what it evicted."""

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        plan = super().store(keys, owner)
        return plan and plan._replace(evicted=())


@fault("tier-evicts-offered", law="plan_exact", seen=("mutant",))
class EvictsOffered(KVTier):
    """A store makes room with a chunk that is offered to it, since only new keys are spared."""

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        new = [key for key in keys if key not in self._chunks]
        return super().store(new or keys, owner)


@fault("tier-removal-unannounced", law="event_consistency", seen=("vllm#55092",))
class RemovalUnannounced(KVTier):
    """An eviction is not announced where its unit is used at once."""

    def _evict(self, key: Key) -> None:
        super()._evict(key)
        self._events.pop()


@fault("tier-refuses-known", law="refusal_honest", seen=("mutant",))
class RefusesKnown(KVTier):
    """A store asks for room for all its chunks, also for those that are there."""

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        return super().store(keys, owner) if len(keys) <= self.avail() else None


@fault("tier-refusal-evicts", law="tier_accounting", seen=("Megatron-LM#6091",))
class RefusalEvicts(KVTier):
    """A store evicts chunk by chunk, and is refused with some of them gone."""

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        plan = super().store(keys, owner)
        if plan is None:
            for key in [key for key in self._chunks if key not in keys and self._evictable(key)]:
                self._evict(key)
        return plan


@fault("tier-full-raises", law="error_contract", seen=("sglang#36770",))
class FullRaises(KVTier):
    """With everything pinned a store raises instead of refusing."""

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        if not self.avail():
            raise RuntimeError("cannot evict: every chunk is in use")
        return super().store(keys, owner)


@fault("tier-eviction-spins", law="termination", seen=("shape: an eviction loop with nothing to evict",))
class EvictionSpins(KVTier):
    """A store evicts until there is room, and nothing may be evicted."""

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        plan = super().store(keys, owner)
        while plan is None:
            plan = super().store(keys, owner)
        return plan


@fault("tier-evicts-unreadable", law="pinned", seen=("Mooncake#3421",))
class EvictsUnreadable(KnowsStores):
    """An eviction looks at pins and readers, and not at whether the store of a chunk has ended."""

    def _evictable(self, key: Key) -> bool:
        return super()._evictable(key) or (self._storing and not self._chunks[key].stored)
