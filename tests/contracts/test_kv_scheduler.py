"""kv_scheduler: the reference passes, the faults are caught by their law, the judge keeps the grammar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from driving import explore, walk

from kvlockstep.core.watchdog import Watchdog
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.impl.faulty.kv_scheduler.drafts import DropsScheduledPublished
from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import NotEnabled
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_scheduler.goals import TIER_GOALS
from kvlockstep.models.kv_scheduler.judge import SchedulerJudge
from kvlockstep.models.requests.answers import DONE
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.reference.kv_scheduler.contract import Batch, Item
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler
from kvlockstep.reference.kv_scheduler.traits import SchedulerTraits


def judge(make: Callable[..., Any] = KVScheduler, sizes: tuple[int, int] = (4, 2)) -> SchedulerJudge:
    return SchedulerJudge(make(*sizes, 8, 4), 8, 4)


# Goals of schedulers with tiers, groups or events, see test_transfers.py and test_scheduler_groups.py beside this file.
OTHERS = {goal.id for goal in KVSchedulerModel.goals if goal.when in {*TIER_GOALS, "groups", "event_listener"}}
BOTH = pytest.mark.parametrize("make", [KVScheduler, OverlapScheduler])
# Those of the module `memory` are faults of the manager beneath, which are tried on kv_manager.


def test_with_drafts_in_flight_every_goal_can_be_reached() -> None:
    assert walk(KVSchedulerModel, OverlapScheduler, 5_000).unreachable == OTHERS


@BOTH
@pytest.mark.parametrize("scope", KVSchedulerModel.small_scopes, ids=str)
def test_small_scopes_hold(scope: Any, make: Callable[..., Any]) -> None:
    with Watchdog(5.0).watching() as watchdog:
        outcome = explore(KVSchedulerModel, make, scope, watchdog=watchdog, steps=15_000)
    assert outcome.failure is None
    assert outcome.states > 50


class PublishesEarly(DropsScheduledPublished):
    """Publishes at scheduling as the fault does, and takes nothing out of a batch."""

    def _continue(self, preempted: list[str]) -> list[tuple[Job, int]]:
        planned = KVScheduler._continue(self, preempted)
        for job, n in planned:
            self._kv.commit(job.rid, n)
        return planned


class LargePages(KVScheduler):
    """A scheduler whose blocks have 16 slots, whatever it is asked for."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, 16, budget, running)


def test_a_scheduler_may_have_blocks_of_its_own_size() -> None:
    for scope in KVSchedulerModel.small_scopes:
        with Watchdog(5.0).watching() as watchdog:
            outcome = explore(KVSchedulerModel, LargePages, scope, watchdog=watchdog, steps=1_000)
        assert outcome.failure is None
        assert outcome.states > 50


def test_publishing_before_compute_is_legal() -> None:
    outcome = walk(KVSchedulerModel, PublishesEarly, 10_000)
    assert outcome.failure is None
    assert outcome.reach["hit"] > 0


UNDER_A_SCHEDULER = {
    "kv-hit-plus-one": "prefix_soundness error_contract",
    "kv-ignores-extra-key": "prefix_soundness write_isolation",
    "kv-resume-old-table": "content_equality prefix_soundness no_aliasing write_isolation accounting",
}


@pytest.mark.parametrize("name", UNDER_A_SCHEDULER)
def test_a_faulty_manager_shows_through_the_scheduler(name: str) -> None:
    def make(blocks: int, block_size: int, budget: int, running: int) -> KVScheduler:
        scheduler = KVScheduler(blocks, block_size, budget, running)
        scheduler._kv = FAULTS[name].make(blocks, block_size)
        return scheduler

    failure = walk(KVSchedulerModel, make, 10_000).failure
    assert failure is not None
    assert failure.law in UNDER_A_SCHEDULER[name].split()


def test_a_request_runs_to_its_length() -> None:
    run = judge()
    assert run.add("a", [1, 2, 3], None, 2, None) == DONE
    assert [str(run.schedule([5])), str(run.update())] == ["a[0:3]", "done"]
    assert [str(run.schedule([6])), str(run.update())] == ["a[3:4]", "ended a"]
    assert not run.live


def test_the_end_token_ends_it() -> None:
    run = judge()
    run.add("a", [1, 2, 3], None, 4, None)
    run.schedule([0])
    assert str(run.update()) == "ended a"


def test_the_grammar() -> None:
    run = judge()
    for operation in (run.update, lambda: run.abort("a"), lambda: run.drain([1])):
        with pytest.raises(NotEnabled):
            operation()
    run.add("a", [1, 2, 3], None, 2, None)
    run.schedule([5])
    for operation in (lambda: run.schedule([5]), run.reset, lambda: run.drain([1])):
        with pytest.raises(NotEnabled):
            operation()
    with pytest.raises(NotEnabled):
        run.add("b", [1] * 8, None, 1, None)
    with pytest.raises(NotEnabled):
        run.add("a", [1], None, 1, None)


def test_a_late_token_is_for_nobody() -> None:
    run = judge()
    run.add("a", [1, 2, 3], None, 2, None)
    run.schedule([5])
    run.abort("a")
    assert run.update() == DONE
    assert run.goals_met["late_token"] == run.goals_met["abort_in_flight"] == 1


@BOTH
def test_an_item_feeds_every_token_that_is_known(make: Callable[..., Any]) -> None:
    scheduler = make(8, 2, 8, 4)
    scheduler.add("a", [1, 2, 3], None, 10, 0)
    (item,) = scheduler.schedule().items
    assert item.tokens == [1, 2, 3]


def decoding(make: Callable[..., Any] = OverlapScheduler) -> SchedulerJudge:
    """A request with its prompt computed, and [5, 6, 7] drafted behind its first token."""
    run = judge(make, (8, 2))
    run.add("a", [1, 2, 3], None, 10, None)
    run.schedule([4], drafts=[5, 6, 7])
    return run


@pytest.mark.parametrize(("accept", "start"), [(3, 7), (1, 5), (0, 4)])
def test_behind_drafts_in_flight_a_request_goes_on_where_the_device_is(accept: int, start: int) -> None:
    run = decoding()
    assert str(run.schedule([8], accept)) == "a[3:7]"
    assert run.update() == DONE
    assert str(run.schedule([9])) == f"a[{start}:{start + 4}]"
    assert run.goals_met["behind_accepted"] == (accept > 0)
    assert run.goals_met["behind_rejected"] == (accept < 3)
    run.update()
    assert run.live["a"].request.tokens[3:] == [4, *[5, 6, 7][:accept], 8, 9]


def test_a_request_that_ends_by_a_draft_runs_on_until_that_is_heard() -> None:
    run = judge(OverlapScheduler, (12, 2))
    run.add("a", [1, 2, 3], None, 12, None)
    run.schedule([4], drafts=[0, 6, 7])
    run.schedule([8], 3)
    assert run.update() == DONE
    assert str(run.schedule([9])) == "a[7:11]"
    assert str(run.update()) == "ended a"
    assert run.update() == DONE
    assert run.goals_met["late_drafts"] == 1


def test_drafts_behind_a_batch_are_for_schedulers_with_both() -> None:
    run = judge()
    run.add("a", [1, 2, 3], None, 2, None)
    with pytest.raises(NotEnabled):
        run.schedule([5], drafts=[1])
    run = judge(OverlapScheduler)
    run.add("a", [1, 2, 3], None, 2, None)
    with pytest.raises(NotEnabled):
        run.schedule([5], drafts=[1] * 4)


class Uncorrected(OverlapScheduler):
    """The worker believes what the scheduler assumes."""

    def _rejections(self, accepted: Any) -> dict[str, int]:
        return {}


def test_a_worker_that_does_not_correct_its_position_is_named() -> None:
    run = decoding(Uncorrected)
    run.schedule([8], 1)
    run.update()
    with pytest.raises(Divergence) as caught:
        run.schedule([9])
    assert caught.value.law == "continuity"


def test_a_drain_says_how_far_it_came() -> None:
    run = judge(FAULTS["sched-ends-late"].make, (8, 1))
    run.add("a", [1, 2], None, 4, None)
    with pytest.raises(Divergence) as caught:
        run.drain([1])
    assert any("a[0:2]" in line for line in caught.value.details)


class Scripted(KVScheduler):
    """Answers batches as `change` makes them of the right ones."""

    def __init__(self, change: Callable[[Batch], Batch]) -> None:
        super().__init__(4, 2, 8, 4)
        self._change = change

    def schedule(self) -> Batch:
        return self._change(super().schedule())


def item(batch: Batch, **changes: Any) -> Batch:
    return batch._replace(items=[Item(*batch.items[0])._replace(**changes)])


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (lambda b: item(b, rid="z"), "live_items"),
        (lambda b: b._replace(items=[*b.items, *b.items]), "live_items"),
        (lambda b: item(b, start=3, n=1), "continuity"),
        (lambda b: item(b, tokens=[9]), "input_tokens"),
        (lambda b: item(b, samples=False), "sampling"),
        (lambda b: item(b, slots=b.items[0].slots[:-1]), "coverage"),
        (lambda b: item(b, slots=b.items[0].slots[::-1]), "held_tables"),
        (lambda b: b._replace(preempted=["a"]), "preemption_frees"),
        (lambda b: b._replace(items=[]), "progress"),
    ],
)
def test_a_wrong_batch_is_named(change: Callable[[Batch], Batch], law: str) -> None:
    run = SchedulerJudge(Scripted(change), 8, 4)
    run.add("a", [1, 2, 3], None, 2, None)
    with pytest.raises(Divergence) as caught:
        run.schedule([5])
    assert caught.value.law == law


def test_laws_that_hold_answer_nothing() -> None:
    assert laws.batch_limits(8, 4, 8, 4) is None
    assert laws.liveness(5, 5) is None
    assert laws.ending(["a"], ["a"]) is None
    assert laws.every_request_ends([], 9) is None


def test_laws_that_do_not_hold_say_what_is_wrong() -> None:
    assert "9 tokens" in str(laws.batch_limits(9, 4, 8, 4))
    assert "no token" in str(laws.liveness(6, 5))
    assert "['a', 'a']" in str(laws.ending(["a", "a"], ["a"]))
    assert "a, b have not ended" in str(laws.every_request_ends(["a", "b"], 9))
    assert "no queue" in str(laws.one_queue({"waiting": []}, {"a"}))
    assert "has ended" in str(laws.one_queue({"waiting": ["a"]}, set()))


def test_what_a_scheduler_does_not_declare_is_what_every_scheduler_does() -> None:
    defaults = {field.name: field.default for field in fields(SchedulerTraits)}
    assert {name for name, default in defaults.items() if default is True} == {
        "preempts",
        "preempts_in_flight",
        "mixes",
        "prefix_cache",
    }
    assert (defaults["overlap"], defaults["drafts"]) == (1, 0)


@pytest.mark.parametrize("lost", ["abort", "reset"])
def test_batches_that_an_abort_or_a_reset_undoes_are_not_counted(lost: str) -> None:
    run = SchedulerJudge(KVScheduler(3, 2, 1, 1), 1, 1)
    run.add("a", [1, 2, 1, 2], None, 1, None)
    if lost == "abort":
        run.add("b", [2, 1], None, 1, None)
    for _ in range(3):
        run.schedule([1])
        run.update()
    if lost == "abort":
        run.abort("a")
    else:
        run.reset()
    assert str(run.drain([1])) != ""
    assert not run.live
