"""kv_schedulers with a peer that are right in another way than the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.peered import PeeredScheduler
from kvlockstep.reference.kv_scheduler.scheduler import Job


class SendsBeforePreemption(PeeredScheduler, OverlapScheduler):
    """A preempted request may end with the token in flight, so what its last batch fills is stored at once."""

    ordered = True
    drafts = 0

    def schedule(self, accepted: Sequence[Mapping[str, int]] = ()) -> Batch:
        return OverlapScheduler.schedule(self, accepted)

    def _rejections(self, accepted: Sequence[Mapping[str, int]]) -> dict[str, int]:
        return {}

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        self._send_ahead(job)
        super()._preempt(job, preempted)

    def _send_ahead(self, job: Job) -> None:
        """Stores the blocks that are full when the batch in flight is done."""
        size, table = self.block_size, self._kv._live[job.rid].table
        for i in range(job.computed // size, (job.computed + self._ahead(job)[0]) // size):
            key = self._kv._key(job.extra_key, job.tokens[: (i + 1) * size])
            if not self._tier.knows(key):
                self._store(key, table[i])
