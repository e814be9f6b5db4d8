"""Shrinking: what it depends on, and that a call that is only slow does not stand for one that hangs."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from kvlockstep.campaign.plan import plan_of
from kvlockstep.campaign.tasks import SHRINK, Task, do_task
from kvlockstep.checking import shrink_failure
from kvlockstep.drivers.random_walk import random_walk
from kvlockstep.drivers.shrink import HANG_SECONDS, shrink
from kvlockstep.models.op import Op
from kvlockstep.models.registry import model_of
from kvlockstep.profiles import profile_of
from kvlockstep.reference.slot_pool import SlotPool
from kvlockstep.targets import Target, resolve
from kvlockstep.trace import Trace
from kvlockstep.watchdog import Watchdog

FAULT = "slot_prefix_cache", "fault:prefix-evicts-interior"
QUICK = replace(profile_of("quick"), step_seconds=2.0)
DEEP = replace(QUICK, isolate=True)


class SlowWhenFull(SlotPool):
    """The first slot takes longer than shrinking waits, the second longer than a check does."""

    def alloc(self):
        slot = super().alloc()
        time.sleep({0: 1.5 * HANG_SECONDS, 1: 1.5 * QUICK.step_seconds}.get(slot, 0.0))
        return slot


SLOW = Target("slot_pool", "slow", SlowWhenFull)
HANG = Trace("slot_pool", model_of("slot_pool").scope_type(2), (Op("alloc"), Op("alloc")), law="termination")


def in_a_worker(lost):
    """Shrinks as a worker of a campaign does, which has been lost over it so often."""
    plan = plan_of(SLOW, QUICK, 0, "random")
    return do_task(SlowWhenFull, plan, Task(SHRINK, 0, HANG, lost=lost), Watchdog(plan.step_seconds), print)


@pytest.mark.parametrize(
    "shrunk",
    [
        lambda: shrink_failure(SLOW, HANG, QUICK),
        lambda: shrink_failure(SLOW, HANG, DEEP),
        lambda: in_a_worker(()),
        lambda: in_a_worker(("it hung", "it hung")),
    ],
    ids=["check", "check in children", "fuzz", "fuzz in children"],
)
def test_a_call_that_is_only_slow_is_not_what_a_hang_becomes(shrunk):
    short = shrunk()
    assert [op.name for op in short.ops] == ["alloc", "alloc"]
    assert not short.flaky


def test_a_hang_that_does_not_repeat_is_flaky():
    short = shrink_failure(replace(SLOW, factory=SlotPool), HANG, QUICK)
    assert short.ops == HANG.ops
    assert short.flaky


def test_shrinking_by_steps_does_not_depend_on_time(monkeypatch):
    target, model_type = resolve(*FAULT), model_of(FAULT[0])
    with Watchdog(5.0).watching() as watchdog:
        failure = random_walk(model_type, target.factory, seed=0, watchdog=watchdog, steps=100_000).failure
        done = []
        for _ in range(2):
            done.append(shrink(model_type, target.factory, failure, watchdog, steps=500))
            monkeypatch.setattr("kvlockstep.drivers.shrink.time.perf_counter", lambda: float("inf"))
        assert done[0] == done[1]
        assert len(done[0].ops) < len(failure.ops)
        longer = shrink(model_type, target.factory, failure, watchdog, steps=5)
    assert len(longer.ops) > len(done[0].ops)
