"""Faults of kv_scheduler: who is in a batch, what is said of it, and schedulers that never come to an end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.impl.faulty.kv_scheduler.basics import TakesTurns
from kvlockstep.reference.kv_scheduler.contract import NO_DRAFTS, Batch, Item
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler


class AbortedIsAdmitted(KVScheduler):
    """An abort takes a request that waits out of the list that users see, and leaves it in the queue."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._aborted: set[str] = set()

    def abort(self, rid: str) -> None:
        waiting = [job for job in self._waiting if job.rid == rid]
        super().abort(rid)
        self._waiting += waiting
        self._aborted.update(job.rid for job in waiting)

    def queues(self) -> Mapping[str, Sequence[str]]:
        return {name: [rid for rid in rids if rid not in self._aborted] for name, rids in super().queues().items()}


class FullChunkSamples(KVScheduler):
    """A chunk that takes the whole budget is sampled from, though its prompt goes on."""

    def _item(self, job: Job, n: int) -> Item:
        item = super()._item(job, n)
        return item._replace(samples=True) if n == self._budget else item


class AbortReportedPreempted(KVScheduler):
    """A request that is aborted leaves the worker's table by way of the list of the preempted ones."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._aborted: list[str] = []

    def abort(self, rid: str) -> None:
        self._aborted += [job.rid for job in self._running if job.rid == rid]
        super().abort(rid)

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        aborted = list(self._aborted)
        ended = super().update(sampled, accepted)
        self._aborted = aborted
        return ended

    def schedule(self) -> Batch:
        batch = super().schedule()
        gone, self._aborted = self._aborted, []
        return batch._replace(preempted=[*batch.preempted, *gone])


class OneEndReported(KVScheduler):
    """Of several requests that end at once the last one is reported."""

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        return list(super().update(sampled, accepted))[-1:]


class TurnsByToken(TakesTurns):
    """Requests take turns token by token, and each turn computes everything anew, one token a batch."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, 1, 1)
        self._served = ""

    def _learn(self, job: Job, tokens: list[int]) -> None:
        super()._learn(job, tokens)
        self._served = job.rid if tokens else self._served

    def _continue(self, preempted: list[str]) -> list[tuple[Job, int]]:
        for job in [job for job in self._running if job.rid == self._served and self._waiting]:
            self._preempt(job, self._turned)
            self._waiting.append(self._waiting.pop(0))
            self._kv.evict_all()
        return KVScheduler._continue(self, preempted)


class AbortFreesAgain(KVScheduler):
    """An abort gives back the blocks of a preempted request, which it has given back already."""

    def abort(self, rid: str) -> None:
        if any(job.rid == rid and job.computed for job in self._waiting):
            self._kv.finish(rid)
        super().abort(rid)


class WaitsForRoom(KVScheduler):
    """Admission tries again until the first request that waits fits."""

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        planned = super()._admit(left)
        while not planned and self._waiting and left and len(self._running) < self._most:
            planned = super()._admit(left)
        return planned


FAULTS = faults_of(
    "kv_scheduler",
    ("sched-aborted-admitted", AbortedIsAdmitted, "an abort that only hides", ("sglang-jax#1400",), "live_items"),
    ("sched-chunk-samples", FullChunkSamples, "a token after half a prompt", ("mutant",), "sampling"),
    ("sched-abort-preempts", AbortReportedPreempted, "the dead are preempted", ("mutant",), "preemption_frees"),
    ("sched-one-end", OneEndReported, "an end is not reported", ("mutant",), "ending"),
    ("sched-turns-by-token", TurnsByToken, "preempted after each token", ("vllm#49902",), "every_request_ends"),
    ("sched-abort-frees-again", AbortFreesAgain, "freed by two hands", ("LMCache#2559",), "error_contract"),
    ("sched-waits-for-room", WaitsForRoom, "a loop that waits for room", ("FastDeploy#5544",), "termination"),
)
