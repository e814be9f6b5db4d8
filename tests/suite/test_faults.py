"""Each driver alone catches what it must. `kvlockstep score` shows that every fault is caught, and becomes short."""

from __future__ import annotations

import pytest
from driving import explore, hypothesis_run, random_walk
from watched import watched

from kvlockstep.core.profiles import profile_of
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.models.registry import model_of
from kvlockstep.reference.slot_pool import SlotPool

MUST_BE_CAUGHT = (
    "pool-occupy-toggles",
    "pool-free-unchecked",
    "pool-free-foreign",
    "prefix-evicts-interior",
    "prefix-finds-evicted",
    "prefix-reuse-keeps",
    "stack-negative-acquire",
    "stack-double-release",
    "kv-hit-plus-one",
    "kv-abort-unwritten",
    "kv-abort-publishes",
    "radix-split-unlocks",
    "radix-split-age",
    "radix-keeps-tokens",
    "bp-chain-no-parent",
    "bp-python-hash",
    "bp-hash-trusted",
    "bp-twin-unpinned",
    "bp-free-twice",
    "paged-evicts-live",
    "paged-rollback-others",
    "paged-copies-tables",
    "paged-around-hole",
)
"""What every driver must find, whatever its way of choosing."""


def by_random(fault, watchdog):
    return random_walk(model_of(fault.contract), fault.make, seed=1, watchdog=watchdog, steps=100_000)


def by_hypothesis(fault, watchdog):
    model_type = model_of(fault.contract)
    return hypothesis_run(model_type, fault.make, seed=1, watchdog=watchdog, examples=400, steps=50)


def by_explore(fault, watchdog):
    model_type = model_of(fault.contract)
    steps = profile_of("ci").explore_steps
    return explore(model_type, fault.make, *model_type.small_scopes, watchdog=watchdog, steps=steps)


# What exploration takes seconds for.
LATE = {"kv-hit-plus-one", "radix-split-age", "radix-split-unlocks"}


@pytest.mark.parametrize(
    ("name", "drive"),
    [
        pytest.param(name, drive, marks=[pytest.mark.slow] if drive is by_explore and name in LATE else [])
        for drive in (by_random, by_hypothesis, by_explore)
        for name in MUST_BE_CAUGHT
    ],
)
def test_every_driver_catches(name, drive):
    fault = FAULTS[name]
    with Watchdog(1.0).watching() as watchdog:
        failure = drive(fault, watchdog).failure
    assert failure is not None, f"{name} was not caught"


def test_what_explore_sees_once_is_a_failure():
    """Once a slot that is freed stays held; a replay finds nothing."""

    class ForgetsOnce(SlotPool):
        forgot = False

        def free(self, slot):
            if not self.forgot and not self.is_free(slot):
                type(self).forgot = True
            else:
                super().free(slot)

    model_type = model_of("slot_pool")
    failure = watched(explore, model_type, ForgetsOnce, model_type.small_scopes[-1]).failure
    assert failure is not None
    assert [op.name for op in failure.ops] == ["alloc", "free"]
