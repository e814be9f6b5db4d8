"""Faults of kv_scheduler: drafts, and what is published of them."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler


@fault(
    "sched-drops-published", law="prefix_soundness", seen=("vllm#57580", "vllm 0.33.0, impl/engines/vllm/known.toml")
)
class DropsScheduledPublished(KVScheduler):
    """Blocks are published when scheduled and stay so if preemption drops them from the batch."""

    policy = None

    def _continue(self, preempted: list[str]) -> list[tuple[Job, int]]:
        planned: list[tuple[Job, int]] = []
        for job, n in super()._continue(preempted):
            self._kv.commit(job.rid, n)
            planned.append((job, n))
        if len(planned) > 1 and self._kv.free_now() == 0 and not preempted:
            victim = planned.pop(0)[0]
            self._preempt(victim, preempted)
        return planned

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        planned = super()._admit(left)
        for job, n in planned:
            self._kv.commit(job.rid, n)
        return planned

    def schedule(self) -> Batch:
        batch = super().schedule()
        for item in self._launched:
            self._kv._live[item.rid].computed -= item.n
        return batch


@fault("sched-rejected-published", law="prefix_soundness", seen=("shape: stale prefix",))
class PublishesRejected(KVScheduler):
    """Blocks are published with their drafts and overwritten when drafts are rejected."""

    def _commit(self, job: Job, n: int) -> None:
        request = self._kv._live[job.rid]
        known, end = request.tokens, request.computed + n
        request.tokens = known[: request.computed + 1] + job.drafts if job.drafts else known
        super()._commit(job, n + len(job.drafts) - (n - 1 if job.drafts else 0))
        request.tokens, request.computed, job.computed = known, end, end


@fault("sched-rejected-counted", law="continuity", seen=("shape: rollback",))
class KeepsRejected(KVScheduler):
    """Rejected drafts count as computed."""

    def _commit(self, job: Job, n: int) -> None:
        super()._commit(job, n)
        job.computed += len(job.drafts) - (n - 1) if job.drafts else 0
