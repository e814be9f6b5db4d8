"""Faults of kv_scheduler: batches scheduled while another one runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.reference.kv_scheduler.contract import NO_DRAFTS, Batch, Item
from kvlockstep.reference.kv_scheduler.scheduler import Job


@fault("sched-rejects-twice", law="continuity", seen=("shape: rollback",))
class RejectsTwice(OverlapScheduler):
    """The worker subtracts rejected drafts that the scheduler has subtracted already."""

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


@fault("sched-counts-before", law="continuity", seen=("shape: state of the wrong step",))
class CountsOfBatchBefore(OverlapScheduler):
    """The worker corrects positions with the accepted counts of the previous batch."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._last: Mapping[str, int] = NO_DRAFTS

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        self._last = accepted
        return super().update(sampled, accepted)

    def _rejections(self, accepted: Sequence[Mapping[str, int]]) -> dict[str, int]:
        return super()._rejections([{**right, **self._last} for right in accepted])


@fault("sched-keeps-placeholders", law="sampling", seen=("vllm#48245",))
class KeepsPlaceholders(OverlapScheduler):
    """A resumed request still waits for tokens that were in flight when it was preempted."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._stale: dict[str, int] = {}

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        self._stale[job.rid] = self._ahead(job)[1]
        super()._preempt(job, preempted)

    def _ahead(self, job: Job) -> tuple[int, int]:
        ahead, coming = super()._ahead(job)
        return ahead, coming + self._stale.get(job.rid, 0)


@fault("sched-late-drafts", law="input_tokens", seen=("shape: late output",))
class DropsLateDrafts(OverlapScheduler):
    """Late results of a preempted request keep the sampled token but lose the accepted drafts."""

    def _arrive(self, job: Job, item: Item, right: list[int], came: list[int]) -> None:
        super()._arrive(job, item, right, came[-1:] if job in self._waiting else came)


@fault("sched-publishes-in-flight", law="prefix_soundness", seen=("shape: stale prefix",))
class PublishesInFlight(OverlapScheduler):
    """Blocks are published up to a batch's drafts before the rejected ones are removed."""

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


@fault("sched-slots-without-drafts", law="coverage", seen=("TensorRT-LLM#16280",))
class SlotsWithoutDrafts(OverlapScheduler):
    """A request behind a batch in flight gets slots as if all drafts in it were rejected."""

    def _reserve(self, job: Job, n: int) -> bool:
        drafts = sum(item.drafts for flight in self._flights for item, _ in flight if item.rid == job.rid)
        return self._kv.reserve(job.rid, self._ahead(job)[0] - drafts + n)


@fault("sched-drafts-of-next", law="input_tokens", seen=("shape: buffer reuse",))
class DraftsOfNextBatch(OverlapScheduler):
    """Accepted drafts are read after the next batch has overwritten them with its own."""

    def schedule(self, accepted: Sequence[Mapping[str, int]] = ()) -> Batch:
        batch = super().schedule(accepted)
        latest = {item.rid: drafts for item, drafts in self._flights[-1] if drafts}
        for flight in list(self._flights)[:-1]:
            for item, drafts in flight:
                drafts[:] = [*latest.get(item.rid, []), *drafts][: len(drafts)]
        return batch


@fault("sched-ends-by-last", law="ending", seen=("shape: off-by-one",))
class EndsByLastToken(OverlapScheduler):
    """Only the last token of a batch is checked for the end, not the accepted drafts before it."""

    def _ends(self, job: Job, came: list[int]) -> bool:
        return super()._ends(job, came[-1:])
