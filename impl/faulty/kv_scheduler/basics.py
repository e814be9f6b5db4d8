"""Faults of kv_scheduler: preemption, resumption, order, aborts of what is in flight, worker tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.kv_scheduler.contract import NO_DRAFTS, Batch, Item
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler


class PreemptKeepsBlocks(KVScheduler):
    """A preempted request waits with its first block still referenced."""

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        table = list(self._kv._live[job.rid].table)
        super()._preempt(job, preempted)
        if len(table) > 1:
            self._kv._hold(table[0])


class StaleWorkerTable(KVScheduler):
    """The worker appends the blocks of a resumed request to the table that it had before."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._tables: dict[str, Sequence[int]] = {}

    def _item(self, job: Job, n: int) -> Item:
        item = super()._item(job, n)
        known = self._tables.get(job.rid, ())[: len(item.slots)]
        self._tables[job.rid] = [*known, *item.slots[len(known) :]]
        return item._replace(slots=self._tables[job.rid])


class ResumesShort(KVScheduler):
    """A preempted request comes back with its prompt alone, and samples its output anew."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._prompts: dict[str, int] = {}

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        self._prompts[rid] = len(tokens)
        super().add(rid, tokens, extra_key, max_tokens, priority)

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        super()._preempt(job, preempted)
        del job.tokens[self._prompts[job.rid] :]


class NewestFirst(KVScheduler):
    """The youngest of those that wait is admitted first: the old ones starve while others arrive."""

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        self._waiting.reverse()
        planned = super()._admit(left)
        self._waiting.reverse()
        return planned


class PreemptedNeverResumes(KVScheduler):
    """What was preempted waits in a queue of its own, from which nobody takes it."""

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


class PreemptedTwice(KVScheduler):
    """A preempted request stays among the running ones in the list of requests that users see."""

    def queues(self) -> Mapping[str, Sequence[str]]:
        queues = dict(super().queues())
        resumed = [job.rid for job in self._waiting if job.computed]
        return {**queues, "running": [*queues["running"], *resumed]}


class AbortInFlightLeaks(KVScheduler):
    """A request that is aborted while its batch runs is dropped, and nobody gives its blocks back."""

    def abort(self, rid: str) -> None:
        if any(item.rid == rid for item in self._launched) and any(job.rid == rid for job in self._running):
            self._running = [job for job in self._running if job.rid != rid]
        super().abort(rid)


class EndsOneLate(KVScheduler):
    """A request that reaches its length with the last slot of a block is given one token more."""

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        for job in self._running:
            full = job.computed + 1 == job.last - 1 and job.last % self.block_size == 1 % self.block_size
            job.last += full
        return super().update(sampled, accepted)


class CountsChunkLate(KVScheduler):
    """A chunk that is not the last of its prompt is computed, and not counted."""

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        middle = {item.rid: item.n for item in self._launched if not item.samples}
        ended = super().update(sampled, accepted)
        for job in self._running:
            job.computed -= middle.get(job.rid, 0)
        return ended


class FeedsOneBefore(KVScheduler):
    """The output of a resumed request is fed from one position too early."""

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


class KeepsOneBlockFree(KVScheduler):
    """Admission keeps a block free for later, also where the request is alone and needs them all."""

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        if self._waiting:
            end = len(self._waiting[0].tokens)
            if self._kv._blocks_for(end) * self.block_size + self.block_size > self.avail():
                return []
        return super()._admit(left)


class PreemptsInName(KVScheduler):
    """A preempted request is reported, and goes on holding what it has until it is resumed."""

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        super()._preempt(job, preempted)
        self._kv.admit(job.rid, job.tokens, job.extra_key, 1)

    def slots(self, rid: str) -> list[int]:
        return self._kv.slots(rid) if rid in self._kv._live else []


class TableWithoutNewBlock(KVScheduler):
    """The worker hears of a decode's new block one step late."""

    def _item(self, job: Job, n: int) -> Item:
        item = super()._item(job, n)
        late = n == 1 and item.start and item.start % self.block_size == 0
        return item._replace(slots=item.slots[: item.start]) if late else item


class TakesTurns(KVScheduler):
    """Prompts that do not fit into one batch take turns, and each loses what it has computed."""

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


class AdmitsOverBudget(KVScheduler):
    """Waiting requests are admitted with the whole budget, whatever the running ones take of it."""

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        return super()._admit(self._budget if left else 0)


class DropsScheduledPublished(KVScheduler):
    """Blocks are published when they are scheduled; what a preemption takes out of the batch stays published."""

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


class PublishesRejected(KVScheduler):
    """Blocks are published as far as drafts go, and those that are rejected are overwritten in the published block."""

    def _commit(self, job: Job, n: int) -> None:
        request = self._kv._live[job.rid]
        known, end = request.tokens, request.computed + n
        request.tokens = known[: request.computed + 1] + job.drafts if job.drafts else known
        super()._commit(job, n + len(job.drafts) - (n - 1 if job.drafts else 0))
        request.tokens, request.computed, job.computed = known, end, end


class KeepsRejected(KVScheduler):
    """What was scheduled counts as computed, also the drafts that were rejected."""

    def _commit(self, job: Job, n: int) -> None:
        super()._commit(job, n)
        job.computed += len(job.drafts) - (n - 1) if job.drafts else 0


FAULTS = faults_of(
    "kv_scheduler",
    (
        "sched-preempt-keeps",
        PreemptKeepsBlocks,
        "a preempted request leaves a reference on a block",
        ("shape: refcount-leak",),
        "accounting",
    ),
    (
        "sched-stale-table",
        StaleWorkerTable,
        "the worker extends a table that it should replace",
        ("LMCache#1361", "vllm#46595"),
        "held_tables",
    ),
    ("sched-resumes-short", ResumesShort, "a resumed request forgets its output", ("imp#536",), "sampling"),
    ("sched-newest-first", NewestFirst, "old requests starve", ("shape: starvation",), "admission_order"),
    (
        "sched-never-resumes",
        PreemptedNeverResumes,
        "a preempted request is never taken up again",
        ("sglang-jax#1400",),
        "progress",
    ),
    ("sched-two-queues", PreemptedTwice, "a request stands in two queues", ("sglang#21632",), "one_queue"),
    (
        "sched-abort-leaks",
        AbortInFlightLeaks,
        "an abort in flight loses the blocks",
        ("shape: release while in flight",),
        "leak_freedom",
    ),
    ("sched-ends-late", EndsOneLate, "a request ends one token late", ("shape: off-by-one",), "ending"),
    ("sched-chunk-again", CountsChunkLate, "a chunk is computed twice", ("shape: off-by-one",), "continuity"),
    ("sched-feeds-before", FeedsOneBefore, "a resumed request feeds other tokens", ("imp#536",), "input_tokens"),
    ("sched-keeps-free", KeepsOneBlockFree, "a request that fits waits for ever", ("FastDeploy#5544",), "progress"),
    ("sched-preempts-in-name", PreemptsInName, "a preempted request holds on", ("vllm#46595",), "preemption_frees"),
    ("sched-late-table", TableWithoutNewBlock, "the worker lacks a block", ("vllm-rbln#676",), "coverage"),
    ("sched-takes-turns", TakesTurns, "long prompts never get done", ("vllm#49902",), "liveness"),
    (
        "sched-over-budget",
        AdmitsOverBudget,
        "admission forgets what is planned",
        ("shape: accounting",),
        "batch_limits",
    ),
    (
        "sched-drops-published",
        DropsScheduledPublished,
        "what was published for a batch stays so when preemption takes it out",
        ("vllm#57580", "vllm 0.33.0, impl/engines/known/vllm.toml"),
        "prefix_soundness",
    ),
    (
        "sched-rejected-published",
        PublishesRejected,
        "rejected drafts stay in the prefix cache",
        ("shape: stale prefix",),
        "prefix_soundness",
    ),
    (
        "sched-rejected-counted",
        KeepsRejected,
        "rejected drafts count as computed",
        ("shape: rollback",),
        "continuity",
    ),
)
