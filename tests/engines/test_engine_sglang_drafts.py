"""SGLang's Scheduler with drafts, alone and over windows and states: what is right holds, what is planted is found."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from driving import walk

from kvlockstep.drivers.episode import missed_goals
from kvlockstep.models.kv_scheduler import KVSchedulerModel

REASON = "sglang is not on this machine: see --engine-path"
drafting = pytest.importorskip("kvlockstep.impl.engines.sglang.drafting", reason=REASON, exc_type=ImportError)
groups = pytest.importorskip("kvlockstep.impl.engines.sglang.drafting_groups", reason=REASON, exc_type=ImportError)


@pytest.mark.parametrize(
    "make",
    [
        drafting.make,
        drafting.make_overlap_eagle,
        groups.make_overlap_window,
        groups.make_state,
        groups.make_overlap_extra,
        pytest.param(groups.make_overlap_lazy, marks=pytest.mark.slow),
    ],
)
def test_what_holds_meets_every_goal(make: Any) -> None:
    outcome = walk(KVSchedulerModel, make, 5_000, seed=0)
    assert outcome.failure is None, outcome.failure
    # A request that is preempted with drafts in flight takes a longer run.
    missed = missed_goals(KVSchedulerModel, outcome.reach, outcome.unreachable)
    assert set(missed) <= {"preempt_drafts"}


def test_the_settings_of_drafts_are_gone_behind_each_call() -> None:
    """Other targets of this process run without them."""
    made = drafting.make_overlap(4, 2, 8, 2)
    made.add("r0", [1, 2, 3], None, 2, 0)
    made.schedule()
    assert drafting.engine.get_spec().speculative_algorithm is None


class WiderWindow(groups.SGLangDraftWindowScheduler):
    """Declares one position more than the window of the engine has."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        full, window = self.groups
        self.groups = full, window._replace(reach=window.reach + 1)


def test_a_window_has_not_one_position_more() -> None:
    outcome = walk(KVSchedulerModel, partial(WiderWindow, overlap=True), 5_000, seed=0)
    assert outcome.failure is not None
    assert outcome.failure.law == "accounting"


def reserves_once(monkeypatch: Any) -> Any:
    """A decode reserves as many slots as a batch verifies, and none for what the one in flight has accepted."""
    for module in (drafting.eagles, drafting.batches):
        monkeypatch.setattr(module, "get_alloc_reserve_per_decode", drafting.sizing.get_alloc_len_per_decode)
    return drafting.make_overlap


def slides_by_plan(monkeypatch: Any) -> Any:
    """A window slides as if every draft in flight were right."""
    slide = drafting.engine.ScheduleBatch._evict_swa

    def further(batch: Any, req: Any, computed: int, **options: Any) -> None:
        slide(batch, req, computed + 3, **options)

    monkeypatch.setattr(drafting.engine.ScheduleBatch, "_evict_swa", further)
    return groups.make_overlap_window


def commits_the_last(monkeypatch: Any) -> Any:
    """The worker commits the state behind the last draft, right or wrong."""
    decide = drafting.spec._verify_commit_step_indices

    def last(**asked: Any) -> Any:
        steps, crossed = decide(**asked)
        return steps.fill_(asked["draft_token_num"] - 1), crossed

    monkeypatch.setattr(drafting.spec, "_verify_commit_step_indices", last)
    return groups.make_state


def saves_elsewhere(monkeypatch: Any) -> Any:
    """The worker saves the state behind the last right draft where the tree gets that of the interval."""
    decide = drafting.spec._verify_commit_step_indices

    def behind(**asked: Any) -> Any:
        steps, crossed = decide(**asked)
        return steps, crossed if crossed is None else crossed.where(crossed < 0, steps)

    monkeypatch.setattr(drafting.spec, "_verify_commit_step_indices", behind)
    return groups.make_extra


@pytest.mark.parametrize(
    ("plant", "law"),
    [
        (reserves_once, "held_tables"),
        (slides_by_plan, "coverage"),
        (commits_the_last, "coverage"),
        (saves_elsewhere, "state_soundness"),
    ],
)
def test_what_is_planted_is_found(plant: Any, law: str, monkeypatch: Any) -> None:
    outcome = walk(KVSchedulerModel, plant(monkeypatch), 20_000, seed=0)
    assert outcome.failure is not None
    assert outcome.failure.law == law


class StaleTails(drafting.RepairedDraftScheduler):  # type: ignore[misc]
    """A decode in a mixed batch writes where the scheduler thinks it is, which is behind by the drafts in flight."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.future_map.resolve_mixed_spec_tails = lambda _batch: None


def test_a_decode_in_a_mixed_batch_goes_on_behind_the_right_drafts() -> None:
    make = partial(drafting.make_overlap_eagle, mixed=True, kind=StaleTails)
    outcome = walk(KVSchedulerModel, make, 5_000, seed=0)
    assert outcome.failure is not None
    assert outcome.failure.law == "continuity"
