"""kv_scheduler with a batch in flight while the next one is decided, and drafts that only the device knows.

Behind a batch in flight a request is planned as if all its drafts were right: it gets slots that far, and the tokens
that the batch will bring count as known. Whatever was wrong is taken off the positions at the launch, where the device
knows it, and off the plan when the batch is back. Which drafts there are nobody asks: there are always `drafts` rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from kvlockstep.reference.kv_scheduler.contract import END_TOKEN, NO_DRAFTS, Batch, Item
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler


class Launched(NamedTuple):
    """An item in flight, and the drafts that the device fed in it."""

    item: Item
    drafts: list[int]


class OverlapScheduler(KVScheduler):
    """Meets reference.scheduler_contract.KVSchedulerTarget, with drafts where batches overlap."""

    overlap = 2

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._flights: deque[list[Launched]] = deque()
        self._guesses: dict[str, list[int]] = {}
        self._rejected: dict[str, int] = {}

    def schedule(self, accepted: Sequence[Mapping[str, int]] = ()) -> Batch:
        self._rejected = self._rejections(accepted)
        batch = super().schedule()
        self._flights.append([Launched(i, self._guesses.pop(i.rid, [])[: i.drafts]) for i in batch.items])
        return batch

    def draft(self, rid: str, tokens: list[int]) -> None:
        self._guesses[rid] = tokens

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        ended = []
        for item, drafts in self._flights.popleft():
            job = next((job for job in self._running + self._waiting if job.rid == item.rid), None)
            if job is None:
                continue
            right = drafts[: accepted.get(job.rid, 0)]
            came = [*right, sampled[job.rid]] if item.samples else []
            self._arrive(job, item, right, came)
            if self._ends(job, came):
                self.abort(job.rid)
                ended.append(job.rid)
        return ended

    def reset(self) -> None:
        super().reset()
        self._guesses.clear()

    def _arrive(self, job: Job, item: Item, right: list[int], came: list[int]) -> None:
        """The tokens of an item are back; of one that was preempted meanwhile there is no KV any more."""
        if job in self._waiting:
            job.tokens += came
            return
        self._learn(job, right)
        self._commit(job, item.n - item.drafts + len(right))
        self._learn(job, came[len(right) :])

    def _ends(self, job: Job, came: list[int]) -> bool:
        return END_TOKEN in came or len(job.tokens) == job.last

    def _rejections(self, accepted: Sequence[Mapping[str, int]]) -> dict[str, int]:
        """Counts the wrong drafts in flight, by request."""
        wrong: dict[str, int] = {}
        for flight, right in zip(self._flights, accepted, strict=True):
            for item, _ in flight:
                wrong[item.rid] = wrong.get(item.rid, 0) + item.drafts - right.get(item.rid, 0)
        return wrong

    def _ahead(self, job: Job) -> tuple[int, int]:
        """The positions of a request that are in flight, and the tokens that come of them if every draft is right."""
        items = [item for flight in self._flights for item, _ in flight if item.rid == job.rid]
        return sum(item.n for item in items), sum(item.drafts + 1 for item in items if item.samples)

    def _wanted(self, job: Job) -> int:
        """Returns what a running request can compute next: nothing if it may end with a batch in flight."""
        ahead, coming = self._ahead(job)
        known = len(job.tokens) + coming
        if coming and known >= job.last:
            return 0
        n = known - job.computed - ahead
        return n + min(self.drafts, job.last - known - 1) if n == 1 else n

    def _reserve(self, job: Job, n: int) -> bool:
        return self._kv.reserve(job.rid, self._ahead(job)[0] + n)

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        super()._preempt(job, preempted)
        self._guesses.pop(job.rid, None)

    def _item(self, job: Job, n: int) -> Item:
        ahead, coming = self._ahead(job)
        wrong = self._rejected.get(job.rid, 0)
        start, known = job.computed + ahead - wrong, len(job.tokens) + coming - wrong
        stop = start + n
        drafts = max(0, stop - known)
        slots = self._worker_slots(job, stop)
        return Item(job.rid, start, n, slots, job.tokens[start : stop - drafts], stop >= known, drafts)
