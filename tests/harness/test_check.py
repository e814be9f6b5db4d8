"""The door for Python: `kvlockstep.check`."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace

import pytest
from driving import explore
from watched import watched

import kvlockstep
from kvlockstep.core.failure_page import FLAKY_SAYS, failure_page
from kvlockstep.core.profiles import profile_of
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.scope import KVScope, Mode
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.slot_pool import SlotPool
from kvlockstep.runs.check import check_target
from kvlockstep.show.console import CheckProgress, progress_bar
from kvlockstep.targets import Target


def test_holds(tmp_path):
    report = kvlockstep.check(SlotPool, contract="slot_pool", directory=tmp_path)
    assert report.holds
    assert [run.driver for run in report.runs] == ["explore", "hypothesis", "random"]


def test_a_violation_raises_the_failure_page(tmp_path):
    make = FAULTS["pool-occupy-toggles"].make
    with pytest.raises(kvlockstep.CheckFailed, match="VIOLATED no_aliasing") as failure:
        kvlockstep.check(make, contract="slot_pool", directory=tmp_path)
    assert "law no_aliasing: No slot is given to two holders." in str(failure.value)
    assert failure.value.report.verdict == "violated"
    assert list(tmp_path.glob("*.jsonl"))


def test_who_waits_is_told_that_a_finding_is_shrunk(tmp_path):
    target = Target("slot_pool", "toggles", FAULTS["pool-occupy-toggles"].make)
    said = []
    report = check_target(target, profile_of("quick"), directory=tmp_path, drivers=("random",), emit=said.append)
    (failure,) = report.failures
    begin, *_, shrink, end = said
    assert (begin.kind, shrink.kind, end.kind) == ("begin", "shrink", "end")
    assert shrink.steps == failure.failure.original
    bar = progress_bar()
    CheckProgress(bar)(shrink)
    assert bar.tasks[0].description == f"slot_pool on toggles: random, shrinking {shrink.steps} operations"


def test_a_violation_can_be_asked_for(tmp_path):
    make = FAULTS["pool-occupy-toggles"].make
    report = kvlockstep.check(make, contract="slot_pool", directory=tmp_path, raise_on_failure=False)
    assert report.verdict == "violated"


def test_inconclusive_is_not_green(tmp_path):
    class NeverHits(KVManager):
        def _lookup(self, tokens, extra_key):
            return []

    with pytest.raises(kvlockstep.CheckFailed, match="INCONCLUSIVE: missed goals: hit"):
        kvlockstep.check(NeverHits, contract="kv_manager", directory=tmp_path)


def test_a_manager_without_prefix_cache_says_so(tmp_path):
    class NoPrefixCache(KVManager):
        prefix_cache = False

        def _lookup(self, tokens, extra_key):
            return []

    assert kvlockstep.check(NoPrefixCache, contract="kv_manager", directory=tmp_path).holds


def test_unusable_arguments():
    with pytest.raises(kvlockstep.UsageError, match="unknown contract"):
        kvlockstep.check(SlotPool, contract="slots")
    with pytest.raises(kvlockstep.UsageError, match="lacks for kv_manager"):
        kvlockstep.check(lambda blocks, block_size: object(), contract="kv_manager")


def test_a_call_that_was_slow_for_once_is_not_blamed(tmp_path):
    class BuildsAtFirst(SlotPool):
        built = False

        def alloc(self):
            if not BuildsAtFirst.built:
                BuildsAtFirst.built = True
                time.sleep(1.3)
            return super().alloc()

    profile = replace(profile_of("quick"), step_seconds=0.5)
    report = check_target(
        Target("slot_pool", "builds", BuildsAtFirst), profile, directory=tmp_path, drivers=("explore",)
    )
    assert not report.failures
    why = "did when repeated with more time"
    assert f"explore runs again: alloc did not return within the time limit, but {why}" in report.notes


def test_a_target_may_do_something_else_the_next_time(tmp_path):
    turns = random.Random(5)

    class HitsAsItLikes(KVManager):
        def _lookup(self, tokens, extra_key):
            return super()._lookup(tokens, extra_key) if turns.random() < 0.5 else []

        def fork(self, rid, child):
            return super().fork(rid, child) if turns.random() < 0.5 else None

    target = Target("kv_manager", "hits as it likes", HitsAsItLikes)
    report = check_target(target, profile_of("ci"), directory=tmp_path, drivers=("hypothesis",))
    assert not report.failures
    (note,) = report.notes
    assert note.startswith("hypothesis: hits as it likes did not do the same again")

    turns.seed(5)
    outcome = watched(
        explore, KVManagerModel, HitsAsItLikes, KVScope(3, 1, 2, 2, tokens=(1,), mode=Mode.EXHAUSTIVE), max_depth=6
    )
    assert outcome.failure is None
    assert outcome.unsteady


def test_a_violation_that_does_not_come_again_is_flaky(tmp_path):
    calls = itertools.count(1)

    class RaisesAtTimes(SlotPool):
        def alloc(self):
            if next(calls) % 97 == 0:
                raise RuntimeError("at times")
            return super().alloc()

    report = kvlockstep.check(RaisesAtTimes, contract="slot_pool", directory=tmp_path, raise_on_failure=False)
    failure = report.targets[0].runs[-1].failure
    assert failure is not None
    assert (failure.law, failure.flaky) == ("error_contract", True)
    assert FLAKY_SAYS in failure_page(failure)
