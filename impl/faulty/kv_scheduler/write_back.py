"""Faults of kv_scheduler: what is evicted is written back to a tier that has no room for it."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.tiers import PinsLate
from kvlockstep.impl.variants.kv_scheduler import WritesBackIntoFew
from kvlockstep.reference.kv_scheduler.contract import Batch


@fault("sched-load-nested-evict", law="prefix_soundness", seen=("sglang#27631",))
class NestedEvict(WritesBackIntoFew):
    """A load makes room before it pins what it reads, and the tier evicts that for what is written back."""

    tier_type = PinsLate
    _tier: PinsLate

    def schedule(self) -> Batch:
        batch = super().schedule()
        self._tier.pin()
        return batch
