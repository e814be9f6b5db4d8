"""Faults of kv_scheduler with drafts in flight: what the scheduler assumes of them, and when it takes that back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.reference.kv_scheduler.contract import NO_DRAFTS, Batch, Item
from kvlockstep.reference.kv_scheduler.scheduler import Job


class RejectsTwice(OverlapScheduler):
    """The worker takes off its positions what was wrong in the batch before, though the scheduler has done so."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._heard: dict[str, int] = {}

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        self._heard = {item.rid: item.drafts - accepted.get(item.rid, 0) for item, _ in self._flights[0]}
        return super().update(sampled, accepted)

    def _rejections(self, accepted: Sequence[Mapping[str, int]]) -> dict[str, int]:
        wrong = super()._rejections(accepted)
        return {rid: wrong.get(rid, 0) + self._heard.get(rid, 0) for rid in {*wrong, *self._heard}}

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        super()._preempt(job, preempted)
        self._heard.pop(job.rid, None)


class CountsOfBatchBefore(OverlapScheduler):
    """The worker corrects positions by the counts of the batch before the one in flight."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._last: Mapping[str, int] = NO_DRAFTS

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        self._last = accepted
        return super().update(sampled, accepted)

    def _rejections(self, accepted: Sequence[Mapping[str, int]]) -> dict[str, int]:
        return super()._rejections([{**right, **self._last} for right in accepted])


class KeepsPlaceholders(OverlapScheduler):
    """The tokens that were in flight at a preemption are still waited for when the request has come back."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._stale: dict[str, int] = {}

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        self._stale[job.rid] = self._ahead(job)[1]
        super()._preempt(job, preempted)

    def _ahead(self, job: Job) -> tuple[int, int]:
        ahead, coming = super()._ahead(job)
        return ahead, coming + self._stale.get(job.rid, 0)


class DropsLateDrafts(OverlapScheduler):
    """Of what arrives for a preempted request the sampled token is kept, and not the drafts before it."""

    def _arrive(self, job: Job, item: Item, right: list[int], came: list[int]) -> None:
        super()._arrive(job, item, right, came[-1:] if job in self._waiting else came)


class PublishesInFlight(OverlapScheduler):
    """Blocks are published as far as a batch had drafts, before the wrong ones are taken off."""

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        self._fed = {item.rid: drafts for item, drafts in self._flights[0]}
        return super().update(sampled, accepted)

    def _arrive(self, job: Job, item: Item, right: list[int], came: list[int]) -> None:
        if job in self._running and (drafts := self._fed[job.rid]):
            request = self._kv._live[job.rid]
            known, end = request.tokens, request.computed
            request.tokens = [*known, *drafts]
            self._kv.commit(job.rid, item.n - item.drafts + len(drafts))
            request.tokens, request.computed = known, end
        super()._arrive(job, item, right, came)


class SlotsWithoutDrafts(OverlapScheduler):
    """Behind a batch in flight a request gets slots as if none of its drafts were right."""

    def _reserve(self, job: Job, n: int) -> bool:
        drafts = sum(item.drafts for flight in self._flights for item, _ in flight if item.rid == job.rid)
        return self._kv.reserve(job.rid, self._ahead(job)[0] - drafts + n)


class DraftsOfNextBatch(OverlapScheduler):
    """Accepted drafts are read where the next batch has put its own meanwhile."""

    def schedule(self, accepted: Sequence[Mapping[str, int]] = ()) -> Batch:
        batch = super().schedule(accepted)
        latest = {item.rid: drafts for item, drafts in self._flights[-1] if drafts}
        for flight in list(self._flights)[:-1]:
            for item, drafts in flight:
                drafts[:] = [*latest.get(item.rid, []), *drafts][: len(drafts)]
        return batch


class EndsByLastToken(OverlapScheduler):
    """Whether a request has come to its end is seen by the last token that arrives, not by the drafts before it."""

    def _ends(self, job: Job, came: list[int]) -> bool:
        return super()._ends(job, came[-1:])


FAULTS = faults_of(
    "kv_scheduler",
    ("sched-rejects-twice", RejectsTwice, "rejections are taken off twice", ("shape: rollback",), "continuity"),
    (
        "sched-counts-before",
        CountsOfBatchBefore,
        "accepted drafts of another batch",
        ("shape: state of the wrong step",),
        "continuity",
    ),
    (
        "sched-keeps-placeholders",
        KeepsPlaceholders,
        "what was in flight at a preemption still counts",
        ("vllm#48245",),
        "sampling",
    ),
    (
        "sched-late-drafts",
        DropsLateDrafts,
        "late drafts of a preempted request are lost",
        ("shape: late output",),
        "input_tokens",
    ),
    (
        "sched-publishes-in-flight",
        PublishesInFlight,
        "a block is published with drafts that are rejected",
        ("shape: stale prefix",),
        "prefix_soundness",
    ),
    (
        "sched-slots-without-drafts",
        SlotsWithoutDrafts,
        "the device is further than the slots go",
        ("TensorRT-LLM#16280",),
        "coverage",
    ),
    (
        "sched-drafts-of-next",
        DraftsOfNextBatch,
        "accepted drafts are read from the next batch",
        ("shape: buffer reuse",),
        "input_tokens",
    ),
    (
        "sched-ends-by-last",
        EndsByLastToken,
        "an end among accepted drafts is missed",
        ("shape: off-by-one",),
        "ending",
    ),
)
