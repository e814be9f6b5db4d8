"""kv_scheduler: first come, first served, over the reference KV manager.

Running requests go first, in the order of their admission; one that finds no slot preempts the youngest. Requests
that wait are admitted in order while slots and budget last, in a step that has preempted nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_scheduler.contract import END_TOKEN, NO_DRAFTS, Batch, Item


@dataclass
class Job:
    """A live request: its known tokens, of which `computed` have KV, and drafts behind them. It ends at `last`."""

    rid: str
    tokens: list[int]
    extra_key: int | None
    last: int
    computed: int = 0
    drafts: list[int] = field(default_factory=list)


class KVScheduler:
    """Meets reference.scheduler_contract.KVSchedulerTarget."""

    policy: str | None = "fcfs"
    extra_key = can_reset = True
    drafts = 3

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        self.block_size = block_size
        self._budget = budget
        self._most = running
        self._kv = KVManager(blocks, block_size)
        self.total = self._kv.total
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._launched: list[Item] = []

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        self._waiting.append(Job(rid, list(tokens), extra_key, len(tokens) + max_tokens))

    def schedule(self) -> Batch:
        preempted: list[str] = []
        planned = self._continue(preempted)
        if not preempted:
            planned += self._admit(self._budget - sum(n for _, n in planned))
        copies = self._kv.copies()
        self._kv.launch()
        self._launched = [self._item(job, n) for job, n in planned]
        return Batch(self._launched, preempted, copies)

    def draft(self, rid: str, tokens: list[int]) -> None:
        job = next(job for job in self._running if job.rid == rid)
        job.drafts = tokens[: job.last - len(job.tokens) - 1]

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        ended = []
        for item in self._launched:
            job = next((job for job in self._running if job.rid == item.rid), None)
            if job is None:
                continue
            right = job.drafts[: accepted.get(job.rid, 0)]
            self._learn(job, right)
            self._commit(job, item.n - item.drafts + len(right))
            job.drafts = []
            if item.samples:
                self._learn(job, [sampled[job.rid]])
                if END_TOKEN in (*right, sampled[job.rid]) or len(job.tokens) == job.last:
                    self.abort(job.rid)
                    ended.append(job.rid)
        self._launched = []
        return ended

    def abort(self, rid: str) -> None:
        if any(job.rid == rid for job in self._running):
            self._kv.finish(rid)
        self._waiting = [job for job in self._waiting if job.rid != rid]
        self._running = [job for job in self._running if job.rid != rid]

    def reset(self) -> None:
        self._kv.reset()
        for job in self._running:
            job.drafts = []
        self._waiting = self._running + self._waiting
        self._running = []

    def queues(self) -> Mapping[str, Sequence[str]]:
        return {"waiting": [job.rid for job in self._waiting], "running": [job.rid for job in self._running]}

    def slots(self, rid: str) -> list[int]:
        return self._kv.slots(rid) if any(job.rid == rid for job in self._running) else []

    def avail(self) -> int:
        return self._kv.avail()

    def free_slots(self) -> Iterable[int] | None:
        return self._kv.free_slots()

    def _learn(self, job: Job, tokens: list[int]) -> None:
        for token in tokens:
            job.tokens.append(token)
            self._kv.append(job.rid, token)

    def _commit(self, job: Job, n: int) -> None:
        self._kv.commit(job.rid, n)
        job.computed += n

    def _continue(self, preempted: list[str]) -> list[tuple[Job, int]]:
        """The running requests that get their next tokens, and how many."""
        planned: list[tuple[Job, int]] = []
        left = self._budget
        for job in list(self._running):
            n = min(self._wanted(job), left)
            while n and job in self._running and not self._reserve(job, n):
                self._preempt(self._running[-1], preempted)
            if n and job in self._running:
                job.drafts = job.drafts[: n - 1]
                planned.append((job, n))
                left -= n
        return planned

    def _wanted(self, job: Job) -> int:
        """The tokens and drafts of a running request that have no KV yet."""
        return len(job.tokens) + len(job.drafts) - job.computed

    def _reserve(self, job: Job, n: int) -> bool:
        return self._kv.reserve(job.rid, n)

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        self._kv.preempt(job.rid)
        job.drafts = []
        self._running.remove(job)
        self._waiting.insert(0, job)
        preempted.append(job.rid)

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        """The waiting requests that start or resume, and how many tokens they compute."""
        planned: list[tuple[Job, int]] = []
        while self._waiting and left and len(self._running) < self._most:
            job = self._waiting[0]
            cached = self._start(job, left)
            if cached is None:
                break
            self._running.append(self._waiting.pop(0))
            job.computed = cached
            n = min(left, len(job.tokens) - cached)
            planned.append((job, n))
            left -= n
        return planned

    def _start(self, job: Job, left: int) -> int | None:
        """Takes slots for a waiting request and returns how many tokens are cached; None if it has to wait."""
        return self._kv.admit(job.rid, job.tokens, job.extra_key, left)

    def _item(self, job: Job, n: int) -> Item:
        end = job.computed + n
        return Item(
            job.rid,
            job.computed,
            n,
            self._worker_slots(job, end),
            (job.tokens + job.drafts)[job.computed : end],
            end >= len(job.tokens),
            len(job.drafts),
        )

    def _worker_slots(self, job: Job, end: int) -> list[int]:
        """The slots of [0, end), as the worker is told."""
        return self._kv.slots(job.rid)[:end]
