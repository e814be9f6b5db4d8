"""Faults of kv_scheduler: the order of requests of which some were loaded for."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_scheduler.caches_in_tier import CachesInTier
from kvlockstep.impl.variants.overtaking import HoldsLoaded, LetsOvertake
from kvlockstep.reference.kv_scheduler.tiered import Load


@fault("sched-loaded-goes-last", law="admission_order", seen=("mutant",))
class LoadedGoesLast(CachesInTier, LetsOvertake):
    """A request whose load has ended goes to the end of the queue, behind all that came later."""

    def _end_load(self, load: Load, ok: bool) -> None:
        super()._end_load(load, ok)
        last = [job for job in self._waiting if job.rid == load.rid]
        self._waiting = [job for job in self._waiting if job.rid != load.rid] + last


@fault("sched-loaded-before-older", law="admission_order", seen=("mutant",))
class LoadedBeforeOlder(HoldsLoaded):
    """A request that holds loaded KV starts before older ones, though the older ones come first."""

    loaded_first = False
