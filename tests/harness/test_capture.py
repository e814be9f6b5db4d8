"""What targets print: nothing of it floods a check, and what the failing step has printed is on the failure page."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import pytest

from kvlockstep.core.capture import MOST_LINES, Capture, output_shown
from kvlockstep.core.isolation import ChildLost, in_child
from kvlockstep.core.trace import load_trace

POOLS = """
import os, sys
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.reference.slot_pool import SlotPool

print("imported")

class Talks(FAULTS["pool-occupy-toggles"].make):
    def __init__(self, *sizes):
        print("a pool is made")
        super().__init__(*sizes)

    def occupy(self, slot):
        print("occupies", slot)
        os.write(2, b"compiled code writes\\n")
        return super().occupy(slot)

class Dies(SlotPool):
    def occupy(self, slot):
        print("the last words", end="")
        os._exit(0)
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "pools.py").write_text(POOLS)

    def run(*arguments: str, code: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def after(text: str, beginning: str) -> list[str]:
    """The lines behind the first that begins like this, as long as they are what a target has printed."""
    lines = map(str.strip, text.partition(beginning)[2].splitlines()[1:])
    return list(takewhile(lambda line: line.startswith("|"), lines))


def test_only_the_failing_step_is_shown(run: Run, tmp_path: Path) -> None:
    check = ["kvlockstep", "check", "slot_pool", "--target", "pools.py:Talks"]
    done = run(*check, code=1)
    said = after(done.stdout, "the target printed last:")
    assert said == ["| occupies 0", "| compiled code writes"]
    assert done.stdout.count("occupies") == 1
    assert "a pool is made" not in done.stdout + done.stderr
    assert "compiled" not in done.stderr
    (trace,) = (tmp_path / ".kvlockstep/failures").iterdir()
    assert "occupies" not in trace.read_text()
    assert load_trace(trace).printed == ()
    again = run("kvlockstep", "replay", str(trace), "--target", "pools.py:Talks", code=1)
    assert after(again.stdout, "the target printed last:") == said


def test_it_is_shown_if_somebody_asks(run: Run) -> None:
    check = ["kvlockstep", "check", "slot_pool", "--target", "pools.py:Talks", "--driver", "random"]
    done = run(*check, "-s", code=1)
    assert done.stdout.count("occupies") > 10
    assert "the target printed" not in done.stdout


def test_the_last_words_of_a_process_are_not_lost(run: Run) -> None:
    done = run("kvlockstep", "check", "slot_pool", "--target", "pools.py:Dies", "--driver", "random", code=1)
    assert after(done.stdout, "the target printed last:") == ["| the last words"]


def test_a_campaign_is_quiet(run: Run, tmp_path: Path) -> None:
    fuzz = ["kvlockstep", "fuzz", "slot_pool", "--target", "pools.py:Talks", "--shards", "1", "--dir", "nightly"]
    done = run(*fuzz, code=1)
    assert "| occupies" in done.stdout
    assert "\noccupies" not in done.stdout
    assert "compiled" not in done.stderr


def test_pytest_shows_it_with_s(run: Run) -> None:
    pytest_run = ["pytest", "-q", "-p", "no:cacheprovider", "--kvlockstep-target", "slot_pool=pools:Talks"]
    assert "| occupies 0" in run(*pytest_run, code=1).stdout
    assert "\noccupies 0" in run(*pytest_run, "-s", code=1).stdout


def test_what_a_lost_child_printed() -> None:
    def work(_: object) -> None:
        for number in range(1000):
            print(f"line {number}")
        sys.stdout.flush()
        import os  # noqa: PLC0415

        os._exit(3)

    with pytest.raises(ChildLost) as lost:
        in_child(work, 5.0)
    assert lost.value.printed[0] == f"... the last {MOST_LINES} lines of 8,890 bytes:"
    assert lost.value.printed[-1] == "line 999"
    with output_shown(), pytest.raises(ChildLost) as shown:
        in_child(work, 5.0)
    assert shown.value.printed == ()


def test_an_empty_file_is_nothing() -> None:
    with Capture() as capture:
        capture.forget()
        assert capture.lines() == ()
