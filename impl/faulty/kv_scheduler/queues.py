"""Faults of kv_scheduler: which request is admitted, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler


@fault("sched-newest-first", law="admission_order", seen=("shape: starvation",))
class NewestFirst(KVScheduler):
    """Waiting requests are admitted newest first, so old ones starve."""

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        self._waiting.reverse()
        planned = super()._admit(left)
        self._waiting.reverse()
        return planned


@fault("sched-never-resumes", law="progress", seen=("sglang-jax#1400",))
class PreemptedNeverResumes(KVScheduler):
    """A preempted request waits in a queue from which nobody takes it."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._aside: list[Job] = []

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        super()._preempt(job, preempted)
        self._aside.append(self._waiting.pop(0))

    def abort(self, rid: str) -> None:
        self._aside = [job for job in self._aside if job.rid != rid]
        super().abort(rid)

    def queues(self) -> Mapping[str, Sequence[str]]:
        return {**super().queues(), "preempted": [job.rid for job in self._aside]}


@fault("sched-two-queues", law="one_queue", seen=("sglang#21632",))
class PreemptedTwice(KVScheduler):
    """A preempted request is listed as running and as waiting."""

    def queues(self) -> Mapping[str, Sequence[str]]:
        queues = dict(super().queues())
        resumed = [job.rid for job in self._waiting if job.computed]
        return {**queues, "running": [*queues["running"], *resumed]}


@fault("sched-keeps-free", law="progress", seen=("FastDeploy#5544",))
class KeepsOneBlockFree(KVScheduler):
    """Admission keeps one block free even if a lone request needs all blocks."""

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        if self._waiting:
            end = len(self._waiting[0].tokens)
            if self._kv._blocks_for(end) * self.block_size + self.block_size > self.avail():
                return []
        return super()._admit(left)


@fault("sched-takes-turns", law="liveness", seen=("vllm#49902",))
class TakesTurns(KVScheduler):
    """Prompts longer than a batch take turns, and each turn discards the other's progress."""

    policy = None

    def schedule(self) -> Batch:
        self._turned: list[str] = []
        batch = super().schedule()
        return batch._replace(preempted=[*self._turned, *batch.preempted])

    def _continue(self, preempted: list[str]) -> list[tuple[Job, int]]:
        for job in list(self._running):
            if job.computed + 1 < len(job.tokens) and len(self._waiting) == 1 and len(self._running) == 1:
                super()._preempt(job, self._turned)
                self._waiting.reverse()
                self._kv.evict_all()
        return super()._continue(preempted)

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        if not self._turned:
            return super()._admit(left)
        kept = self._waiting[1:]
        self._waiting = self._waiting[:1]
        planned = super()._admit(left)
        self._waiting += kept
        return planned


@fault("sched-aborted-admitted", law="live_items", seen=("sglang-jax#1400",))
class AbortedIsAdmitted(KVScheduler):
    """An abort hides a waiting request but leaves it in the queue."""

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


@fault("sched-turns-by-token", law="every_request_ends", seen=("vllm#49902",))
class TurnsByToken(TakesTurns):
    """Requests preempt each other after every token and recompute everything each time."""

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


@fault("sched-waits-for-room", law="termination", seen=("FastDeploy#5544",))
class WaitsForRoom(KVScheduler):
    """Admission loops until the first waiting request fits, so it may never return."""

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        planned = super()._admit(left)
        while not planned and self._waiting and left and len(self._running) < self._most:
            planned = super()._admit(left)
        return planned
