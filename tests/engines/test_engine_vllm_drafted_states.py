"""vLLM's schedulers with drafts over states under kv_scheduler: what is right holds, what is planted is found."""

from __future__ import annotations

from typing import Any

import pytest
from driving import walk

from kvlockstep.drivers.episode import missed_goals
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.reference.kv_manager.groups.contract import Step
from kvlockstep.reference.kv_scheduler.contract import Item

REASON = "vllm is not on this machine: see --engine-path"
states = pytest.importorskip("kvlockstep.impl.engines.vllm.saves.drafts", reason=REASON, exc_type=ImportError)

MAKES = (
    "make_ngram_state",
    "make_ngram_state_window",
    "make_uncached_state",
    "make_async_ngram_state",
    "make_async_eagle_state",
)


@pytest.mark.parametrize("make", MAKES)
def test_the_engine_holds_and_meets_every_goal(make: str) -> None:
    outcome = walk(KVSchedulerModel, getattr(states, make), 12_000, seed=0)
    assert outcome.failure is None, outcome.failure
    assert not missed_goals(KVSchedulerModel, outcome.reach, outcome.unreachable)


def test_the_pool_has_a_block_for_each_draft() -> None:
    """A state takes two blocks and one for each draft, or one and those where prefixes are not cached."""
    assert states.make_ngram_state(8, 4, 16, 4).total == (8 + 2 + 3) * 4
    assert states.make_uncached_state(8, 4, 16, 4).total == (8 + 1 + 3) * 4


def test_blocks_have_more_tokens_than_there_are_drafts() -> None:
    assert [states.make_ngram_state(8, size, 16, 4).drafts for size in (1, 2, 4, 8)] == [1, 1, 3, 3]
    assert states.make_ngram_state_small(8, 1, 16, 4).drafts == 3


class GoesOnByPlan(states.DraftedStatesScheduler):  # type: ignore[misc]
    """The worker takes every draft for right when it looks for the state."""

    def _judged(self, output: Any, right: Any) -> None:
        drafts = output.scheduled_spec_decode_tokens
        super()._judged(output, {rid: len(drafts.get(rid, ())) for rid in output.num_scheduled_tokens})


class CopiesNoCheckpoint(states.DraftedStatesScheduler):  # type: ignore[misc]
    """Nothing is done behind the forward."""

    def _step(self, g: int, item: Item) -> Step:
        step: Step = super()._step(g, item)
        return step._replace(checkpoints=())


class KeepsTheColumn(states.DraftedStatesScheduler):  # type: ignore[misc]
    """The worker keeps the column of a state behind the preemption of its request."""

    def _forget(self, rid: str) -> None:
        ran = dict(self._ran)
        super()._forget(rid)
        self._ran = ran


class StaysInTheColumn(states.DraftedStatesScheduler):  # type: ignore[misc]
    """The next batch reads the first column of the last one, whatever was accepted."""

    def _source(self, g: int, item: Item) -> int:
        ran = self._ran.get((item.rid, g))
        return super()._source(g, item) if ran is None else ran.column


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (GoesOnByPlan, "state_soundness"),
        (CopiesNoCheckpoint, "state_soundness"),
        (KeepsTheColumn, "state_soundness"),
        (StaysInTheColumn, "state_soundness"),
    ],
)
def test_a_planted_fault_is_found(kind: type, law: str) -> None:
    def made(*sizes: int) -> Any:
        return kind(*sizes, groups=(states.FULL, states.STATE))

    outcome = walk(KVSchedulerModel, made, 12_000, seed=0)
    assert outcome.failure is not None
    assert outcome.failure.law == law, outcome.failure.message


def test_a_scheduler_that_counts_no_drafts_is_found() -> None:
    """The engine's manager takes no blocks for the states behind drafts."""

    class TakesNone(states.DraftedStatesScheduler):  # type: ignore[misc]
        def _spec(self, group: Any) -> Any:
            drafts, self.drafts = self.drafts, 0
            spec = super()._spec(group)
            self.drafts = drafts
            return spec

    def make(*sizes: int) -> Any:
        return TakesNone(*sizes, groups=(states.FULL, states.STATE))

    outcome = walk(KVSchedulerModel, make, 2_000, seed=0)
    assert outcome.failure is not None
