"""Faults of kv_scheduler: what loses its blocks is written back to a tier, which has no room for it."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.tiers import PinsLate
from kvlockstep.impl.variants.kv_scheduler import WritesBackIntoFew
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.scheduler import Job
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


@fault("sched-load-nested-evict", law="prefix_soundness", seen=("sglang#27631",))
class NestedEvict(WritesBackIntoFew):
    """A load makes room before it pins what it reads, and the tier evicts that for what is written back."""

    tier_type = PinsLate
    _tier: PinsLate

    def schedule(self) -> Batch:
        batch = super().schedule()
        self._tier.pin()
        return batch


@fault("sched-swap-space-fills", law="error_contract", seen=("vllm#5578",))
class SwapSpaceFills(TieredScheduler):
    """Nothing bounds what preemptions swap out, and a call fails when the tier is full."""

    def _tier_size(self, blocks: int) -> int:
        return 2

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        for key, block in self._filled(job, 0):
            if not self._tier.knows(key):
                self._store(key, block)
            if not self._tier.knows(key):
                raise RuntimeError("no unit is left to swap out to")
        super()._preempt(job, preempted)
