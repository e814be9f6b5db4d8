"""The watchdog cuts off calls of a target, and nothing else."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import Phase, settings
from slow import slow

from kvlockstep.core import watchdog as watchdogs
from kvlockstep.core.profiles import profile_of
from kvlockstep.core.system import seconds_without_a_core
from kvlockstep.core.watchdog import TICKS, Watchdog, _frames_of_the_target
from kvlockstep.drivers import DRIVERS, Run
from kvlockstep.drivers.episode import Outcome, play_ops
from kvlockstep.machines import machine
from kvlockstep.models.core import calls, lockstep
from kvlockstep.models.core.calls import StepTimeout, call_target, enter_target
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


def test_a_call_that_is_cut_off_says_where():
    with Watchdog(0.2).watching(), pytest.raises(Divergence) as cut_off:
        alloc()
    said = "\n".join(cut_off.value.details)
    assert said.startswith("cut off in\n")
    assert re.search(rf'File "{re.escape(__file__)}", line \d+, in alloc\n +time\.sleep', said)


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


def test_what_takes_the_error_of_a_call_is_not_cut_off():
    taking = SimpleNamespace(f_code=call_target.__code__, f_back=None)
    inside = SimpleNamespace(f_code=SlotPool.alloc.__code__, f_back=SimpleNamespace(f_code=enter_target.__code__))
    assert _frames_of_the_target(taking) is None
    assert _frames_of_the_target(inside) == [inside]


def test_time_without_a_core_is_not_the_target_s(monkeypatch):
    """Three of four looks fall into a time in which the process had no core; it takes four times as many."""
    inside = SimpleNamespace(f_code=enter_target.__code__, f_back=None)
    waited = itertools.accumulate(itertools.repeat(0.75))
    monkeypatch.setattr(watchdogs, "seconds_without_a_core", lambda: next(waited))
    dog = Watchdog(4.0)
    dog.look(0, inside)  # sees the beat for the first time
    for _ in range(4 * TICKS - 3):  # one less, and half a look of tolerance
        dog.look(0, inside)
    with pytest.raises(StepTimeout):
        dog.look(0, inside)


def test_the_time_without_a_core_is_measured():
    """Two processes that never stop share one core."""
    if not seconds_without_a_core(os.getpid()) and not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not tell")
    spin = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(spin) for _ in range(2)]
    try:
        for process in processes:
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not all(seconds_without_a_core(p.pid) > 0.05 for p in processes):
            time.sleep(0.05)
        assert all(seconds_without_a_core(process.pid) > 0.05 for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


class AlarmOnce(Watchdog):
    """A watchdog whose limit ends at one moment: before line number `at` of those that are watched for."""

    def __init__(self, at: int) -> None:
        super().__init__(5.0)
        self.left = at

    def trace(self, frame, event, _argument):
        if not frame.f_code.co_filename.startswith(WATCHED_FILES):
            return None
        where = frame.f_code, frame.f_lineno
        if event == "line" and where not in self.passed:
            self.passed.add(where)
            self.left -= 1
            if self.left == 0:
                self._seen, self._still = self.beat, TICKS - 1
                self.look(0, frame)
        return self.trace

    @contextmanager
    def tracing(self):
        self.passed = set()
        former = sys.gettrace()
        sys.settrace(self.trace)
        try:
            yield
        finally:
            sys.settrace(former)


HARNESS = Path(watchdogs.__file__).parents[1]
WATCHED_FILES = (str(HARNESS / "drivers"), calls.__file__, lockstep.__file__, __file__)


class Unprintable(Exception):
    def __str__(self) -> str:
        text = "no text"
        return text


class Fails(SlotPool):
    """An allocation raises what no contract names."""

    def alloc(self):
        raise Unprintable


def driven(driver: str, watchdog: Watchdog, factory: type) -> Outcome:
    budget = replace(profile_of("quick"), explore_steps=20, examples=1, steps_per_example=4, random_steps=12)
    return DRIVERS[driver].run(Run(model_of("slot_pool"), factory, budget, watchdog, seed=1))


def replayed(_driver: str, watchdog: Watchdog, factory: type) -> Outcome:
    model_type = model_of("slot_pool")
    trace = play_ops(model_type, factory, model_type.scope_type(3), [Op("alloc")] * 2, watchdog).failure
    return Outcome("replay", failure=trace)


@pytest.mark.parametrize("factory", [SlotPool, Fails])
@pytest.mark.parametrize("driver", [*slow("hypothesis"), *(name for name in DRIVERS if name != "hypothesis"), "replay"])
def test_a_limit_that_ends_at_any_moment_is_a_finding_or_nothing(driver, factory):
    """Never an error of the driver: not while it proposes, nor while it takes what the target raised."""
    play = replayed if driver == "replay" else driven
    found, at, left = set(), 0, 0
    while left <= 0:
        at += 1
        watchdog = AlarmOnce(at)
        with watchdog.tracing():
            outcome = play(driver, watchdog, factory)
        left = watchdog.left
        found.add(outcome.failure.law if outcome.failure is not None else "cut" if outcome.cut else "held")
    assert at > 30
    usual = "held" if factory is SlotPool else "error_contract"
    assert {usual, "termination"} <= found <= {usual, "termination", "cut"}


def test_an_error_whose_text_never_comes_is_cut_off():
    class Mute(Exception):
        def __str__(self) -> str:
            while time.monotonic():
                pass
            return ""

    def alloc():
        raise Mute

    with Watchdog(0.2).watching(), pytest.raises(Divergence, match="Mute, whose text did not come within") as raised:
        call_target(alloc)
    assert raised.value.law == "termination"


def test_an_error_whose_text_ends_the_process_is_named_by_its_type():
    class Leaving(Exception):
        def __str__(self) -> str:
            raise SystemExit

    def alloc():
        raise Leaving

    with pytest.raises(Divergence, match=r"alloc raised Leaving$"):
        call_target(alloc)
