"""Faults of kv_scheduler: the end of a request."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_scheduler.contract import NO_DRAFTS
from kvlockstep.reference.kv_scheduler.scheduler import KVScheduler


@fault("sched-abort-leaks", law="leak_freedom", seen=("shape: release while in flight",))
class AbortInFlightLeaks(KVScheduler):
    """A request aborted while its batch runs is dropped, and its blocks are never freed."""

    def abort(self, rid: str) -> None:
        if any(item.rid == rid for item in self._launched) and any(job.rid == rid for job in self._running):
            self._running = [job for job in self._running if job.rid != rid]
        super().abort(rid)


@fault("sched-ends-late", law="ending", seen=("shape: off-by-one",))
class EndsOneLate(KVScheduler):
    """A request that ends on the last slot of a block gets one token too many."""

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        for job in self._running:
            full = job.computed + 1 == job.last - 1 and job.last % self.block_size == 1 % self.block_size
            job.last += full
        return super().update(sampled, accepted)


@fault("sched-one-end", law="ending", seen=("mutant",))
class OneEndReported(KVScheduler):
    """Of several requests that end in one batch, only the last one is reported."""

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        return list(super().update(sampled, accepted))[-1:]


@fault("sched-abort-frees-again", law="error_contract", seen=("LMCache#2559",))
class AbortFreesAgain(KVScheduler):
    """Aborting a preempted request frees its blocks a second time, which raises an error."""

    def abort(self, rid: str) -> None:
        if any(job.rid == rid and job.computed for job in self._waiting):
            self._kv.finish(rid)
        super().abort(rid)
