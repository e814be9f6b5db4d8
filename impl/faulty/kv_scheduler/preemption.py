"""Faults of kv_scheduler: preemption and resumption."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_scheduler.contract import NO_DRAFTS, Batch, Item
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler


@fault("sched-preempt-keeps", law="accounting", seen=("shape: refcount-leak",))
class PreemptKeepsBlocks(KVScheduler):
    """A preempted request keeps a reference on its first block."""

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        table = list(self._kv._live[job.rid].table)
        super()._preempt(job, preempted)
        if len(table) > 1:
            self._kv._hold(table[0])


@fault("sched-resumes-short", law="sampling", seen=("imp#536",))
class ResumesShort(KVScheduler):
    """A preempted request resumes with its prompt only and samples its output again."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._prompts: dict[str, int] = {}

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        self._prompts[rid] = len(tokens)
        super().add(rid, tokens, extra_key, max_tokens, priority)

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        super()._preempt(job, preempted)
        del job.tokens[self._prompts[job.rid] :]


@fault("sched-feeds-before", law="input_tokens", seen=("imp#536",))
class FeedsOneBefore(KVScheduler):
    """A resumed request feeds its output from one position too early."""

    def _item(self, job: Job, n: int) -> Item:
        item = super()._item(job, n)
        again = n > 1 and len(job.tokens) > self._given[job.rid]
        return item._replace(tokens=[*item.tokens[:1], *item.tokens[:-1]]) if again else item

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._given: dict[str, int] = {}

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        self._given[rid] = len(tokens)
        super().add(rid, tokens, extra_key, max_tokens, priority)


@fault("sched-preempts-in-name", law="preemption_frees", seen=("vllm#46595",))
class PreemptsInName(KVScheduler):
    """A preempted request is reported but keeps its blocks until it resumes."""

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        super()._preempt(job, preempted)
        self._kv.admit(job.rid, job.tokens, job.extra_key, 1)

    def slots(self, rid: str) -> list[int]:
        return self._kv.slots(rid) if rid in self._kv._live else []


@fault("sched-abort-preempts", law="preemption_frees", seen=("mutant",))
class AbortReportedPreempted(KVScheduler):
    """An aborted request is reported to the worker as preempted."""

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
