"""The watchdog cuts off calls of a target, and nothing else."""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace

import pytest
from hypothesis import Phase, settings

from kvlockstep.core.watchdog import Watchdog, _in_the_target
from kvlockstep.machines import machine
from kvlockstep.models.core.calls import call_target
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import Op
from kvlockstep.models.registry import model_of
from kvlockstep.reference.slot_pool import SlotPool
from kvlockstep.runs.check import CheckFailed


class Slow(SlotPool):
    """An allocation takes 0.4 seconds."""

    def alloc(self):
        time.sleep(0.4)
        return super().alloc()


def alloc():
    """A call of a new target, which is slow."""
    model_type = model_of("slot_pool")
    model_type(model_type.scope_type(3), Slow).step(Op("alloc"))


def test_a_driver_that_is_slow_is_not_a_target_that_hangs():
    with Watchdog(0.2).watching():
        time.sleep(0.6)


def test_a_model_that_is_slow_is_not_a_target_that_hangs():
    """Hypothesis, asked for a choice by a command, may take its time."""

    def pick(options):
        time.sleep(0.6)
        return options[0]

    model_type = model_of("slot_pool")
    model = model_type(model_type.scope_type(3), SlotPool)
    with Watchdog(0.2).watching():
        model.free(pick)


def test_a_call_that_takes_too_long_is_cut_off():
    with Watchdog(0.2).watching(), pytest.raises(Divergence, match="alloc did not return within the time limit"):
        alloc()


def test_a_step_may_take_less_time_in_a_block():
    with Watchdog(1.0).watching() as watchdog:
        with watchdog.at_most(60.0):
            assert watchdog.limit == 1.0
        with pytest.raises(Divergence, match="did not return"), watchdog.at_most(0.2):
            alloc()
        watchdog.beat += 1
        alloc()


def test_what_watches_already_goes_on_watching():
    with Watchdog(60.0).watching() as watchdog:
        with watchdog.watching():
            pass
        with pytest.raises(Divergence, match="did not return"), watchdog.at_most(0.2):
            alloc()


def test_the_timer_of_others_goes_on():
    rang = []
    former = signal.signal(signal.SIGALRM, lambda *_: rang.append(time.monotonic()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with Watchdog(0.1).watching():
            time.sleep(0.15)
        assert not rang
        time.sleep(0.4)
        assert rang
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def test_a_machine_in_a_suite_does_not_hang_with_its_target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = machine("slot_pool", Slow)
    made.watchdog = Watchdog(0.2)
    made.TestCase.settings = settings(max_examples=5, phases=[Phase.generate], database=None)
    with pytest.raises(CheckFailed, match="VIOLATED termination"):
        made.TestCase("runTest").runTest()


def test_a_call_that_has_not_begun_yet_is_not_cut_off():
    beginning = SimpleNamespace(f_code=call_target.__code__, f_lineno=call_target.__code__.co_firstlineno, f_back=None)
    inside = SimpleNamespace(f_code=call_target.__code__, f_lineno=call_target.__code__.co_firstlineno + 3, f_back=None)
    assert not _in_the_target(beginning)
    assert _in_the_target(inside)
