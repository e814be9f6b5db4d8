"""Without fork and without timers: what works goes on, and says what it cannot do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlockstep.core import isolation, processes, system, watchdog
from kvlockstep.core.profiles import profile_of
from kvlockstep.runs import check
from kvlockstep.targets import registry

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system like Windows."""
    monkeypatch.setattr(system, "CAN_FORK", False)
    monkeypatch.setattr(system, "CAN_LIMIT_TIME", False)
    monkeypatch.setattr(registry, "CAN_FORK", False)
    monkeypatch.setattr(watchdog, "CAN_LIMIT_TIME", False)
    monkeypatch.setattr(processes, "FORK", system.NoFork())
    monkeypatch.setattr(isolation, "FORK", system.NoFork())
    monkeypatch.delattr(os, "fork")


def test_a_system_that_has_everything_says_nothing() -> None:
    assert system.unprotected() == ""


@pytest.mark.usefixtures("bare")
def test_a_check_runs_and_says_what_it_cannot_do(run_cli: Cli) -> None:
    code, out, _ = run_cli("check", "slot_pool", "--target", "pool", "--driver", "random")
    assert code == 0
    assert " ".join(out.split()).count("on this system targets run in the process of the check: a target that") == 1


@pytest.mark.usefixtures("bare")
def test_a_failure_is_found_shrunk_and_saved(tmp_path: Path) -> None:
    target = registry.resolve("slot_pool", "fault:" + next(iter(registry.known_faults("slot_pool"))))
    report = check.check_target(target, profile_of("quick"), directory=tmp_path)
    assert report.failures
    assert list(tmp_path.iterdir())
    assert "a call that does not return hangs it" in report.notes[0]


@pytest.mark.usefixtures("bare")
def test_work_for_a_child_is_done_here() -> None:
    assert isolation.in_child(lambda _: os.getpid(), 1.0) == os.getpid()


@pytest.mark.usefixtures("bare")
def test_what_needs_workers_is_a_usage_error(run_cli: Cli) -> None:
    code, _, said = run_cli("score", "--contract", "slot_pool", "--clean-times", "0")
    assert code == 2
    assert "use check, explore or replay" in said


FORKS_AND_IS_INTERRUPTED = """
import os, signal, sys
from kvlockstep.core.isolation import in_child

# A shell that starts the tests in the background has them ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Stands for what logging, torch and others register: while it runs the interrupt arrives.
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    in_child(lambda watchdog: None, 5.0)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_an_interrupt_during_a_fork_is_not_lost():
    done = subprocess.run([sys.executable, "-c", FORKS_AND_IS_INTERRUPTED], capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
