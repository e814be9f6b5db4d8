"""Faults of kv_scheduler: what a batch computes and samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_scheduler.contract import NO_DRAFTS, Item
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler


@fault("sched-chunk-again", law="continuity", seen=("shape: off-by-one",))
class CountsChunkLate(KVScheduler):
    """A chunk in mid-prompt is not counted as computed, so it is computed again."""

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        middle = {item.rid: item.n for item in self._launched if not item.samples}
        ended = super().update(sampled, accepted)
        for job in self._running:
            job.computed -= middle.get(job.rid, 0)
        return ended


@fault("sched-over-budget", law="batch_limits", seen=("shape: accounting",))
class AdmitsOverBudget(KVScheduler):
    """Waiting requests are admitted with the whole token budget, of which running ones use part."""

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        return super()._admit(self._budget if left else 0)


@fault("sched-chunk-samples", law="sampling", seen=("mutant",))
class FullChunkSamples(KVScheduler):
    """A chunk that fills the whole budget is sampled from, although its prompt goes on."""

    def _item(self, job: Job, n: int) -> Item:
        item = super()._item(job, n)
        return item._replace(samples=True) if n == self._budget else item
