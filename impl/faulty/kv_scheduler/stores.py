"""Faults of kv_scheduler: units and blocks of stores, and how stores end."""

from __future__ import annotations

from collections.abc import Hashable

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_scheduler.caches_in_tier import CachesInTier
from kvlockstep.impl.faulty.tiers import FreesTwice
from kvlockstep.impl.variants.kv_scheduler import OneUnit
from kvlockstep.reference.kv_manager.manager import Key
from kvlockstep.reference.kv_manager.tier import Store, Tier
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


@fault("sched-store-takes-target", law="target_owned", seen=("sglang#28468",))
class StoreTakesTarget(OneUnit):
    """A store that finds no unit takes the one that another store is writing."""

    class tier_type(Tier):
        def begin_store(self, key: Key) -> int | None:
            unit = super().begin_store(key)
            if unit is None and self._storing:
                unit = self._storing[key] = next(iter(self._storing.values()))
            return unit

        def end_store(self, key: Key, ok: bool) -> None:
            unit = self._storing[key]
            super().end_store(key, ok)
            if unit in self._storing.values():
                self._cached.pop(key, None)
                self._free = [free for free in self._free if free != unit]


@fault("sched-failed-store-cached", law="failure_visible", seen=("sglang#27108",))
class FailedStoreCached(CachesInTier):
    """A store that failed counts as done."""

    def _end_store(self, store: Store, ok: bool) -> None:
        super()._end_store(store, True)


@fault("sched-store-never-done", law="progress", seen=("LMCache#3884",))
class StoreNeverDone(TieredScheduler):
    """The end of a store is only noticed while a request runs; of the others the blocks stay pinned."""

    def poll(self) -> None:
        if not self._running:
            self._completed = [(id, ok) for id, ok in self._completed if id in self._loads]
        super().poll()


@fault("sched-unit-freed-twice", law="tier_accounting", seen=("LMCache#2559",))
class UnitFreedTwice(TieredScheduler):
    """The unit of a store that failed is given back twice, by the error path and by the clean-up."""

    tier_type = FreesTwice


@fault("sched-ended-store-leaks", law="accounting", seen=("LMCache#3884",))
class EndedStoreLeaks(TieredScheduler):
    """A store whose request has ended meanwhile does not give its block back."""

    def _end_store(self, store: Store, ok: bool) -> None:
        if any(store.block in request.table for request in self._kv._live.values()):
            super()._end_store(store, ok)
        else:
            self._tier.end_store(store.key, ok)


@fault("sched-ends-swapped", law="target_owned", seen=("shape: order of completion",))
class EndsSwapped(TieredScheduler):
    """Ends of stores are taken for those of the oldest stores, whichever have ended."""

    def complete(self, id: Hashable, ok: bool) -> None:
        told = {id for id, _ in self._completed}
        oldest = next((store for store in self._stores if store not in told), id)
        super().complete(oldest if id in self._stores else id, ok)
