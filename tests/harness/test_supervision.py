"""Targets that end, crash or hang their process: a finding with a trace in every driver and profile, never green."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from slow import slow
from waiting import wait_until

from kvlockstep.core import isolation
from kvlockstep.core.isolation import ChildLost, in_child
from kvlockstep.core.notes import EpisodeNotes
from kvlockstep.core.profiles import PROFILES
from kvlockstep.core.trace import load_trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers import CHECK_DRIVERS, shrink
from kvlockstep.models.core.calls import call_target, enter_target
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.slot_pool import SlotPool
from kvlockstep.runs.check import check_target
from kvlockstep.runs.supervising import run_ops_supervised
from kvlockstep.targets import Target


class Exits(KVManager):
    def commit(self, rid, n):
        os._exit(0)


class Crashes(KVManager):
    def commit(self, rid, n):
        ctypes.string_at(0)


class Interrupts(KVManager):
    def commit(self, rid, n):
        raise KeyboardInterrupt


class Hangs(KVManager):
    def commit(self, rid, n):
        while True:
            time.sleep(0.1)


class HangsDeaf(KVManager):
    def commit(self, rid, n):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            time.sleep(0.1)


class ForksAway(KVManager):
    """Leaves a copy of its process behind, which goes on with the driver's work."""

    commits = 0

    def commit(self, rid, n):
        ForksAway.commits += 1
        if ForksAway.commits == 5:
            os.fork()
        super().commit(rid, n)


class SitsInStart(KVManager):
    def __init__(self, blocks, block_size):
        os._exit(7)


IN_EACH_PROFILE = ["quick", *(pytest.param(name, marks=pytest.mark.slow) for name in PROFILES if name != "quick")]
ENDS = {Exits: "the process ended with exit code 0", Crashes: "the process died of SIGSEGV"}


def checked(manager, profile, driver, tmp_path, **changes):
    target = Target("kv_manager", manager.__name__, manager)
    quick = {"random_steps": 200, "examples": 5, "step_seconds": 0.5, **changes}
    return check_target(target, replace(PROFILES[profile], **quick), directory=tmp_path, drivers=(driver,))


@pytest.mark.parametrize("profile", IN_EACH_PROFILE)
@pytest.mark.parametrize("driver", CHECK_DRIVERS)
@pytest.mark.parametrize("manager", ENDS, ids=lambda manager: manager.__name__)
def test_a_process_that_ends_is_a_finding_with_the_shortest_trace(manager, driver, profile, tmp_path):
    report = checked(manager, profile, driver, tmp_path)
    (run,) = report.failures
    assert report.verdict == "violated"
    assert run.failure.law == "error_contract"
    assert run.failure.message == ENDS[manager]
    assert run.seconds > 0
    assert [op.name for op in run.failure.ops] == ["admit", "forward"]
    assert not run.failure.flaky
    assert os.path.exists(run.trace)


def test_a_crash_says_where_in_the_target_it_was(tmp_path):
    (run,) = checked(Crashes, "quick", "random", tmp_path).failures
    assert "Fatal Python error: Segmentation fault" in run.failure.details
    assert run.failure.details[-1].endswith("in commit")


@pytest.mark.parametrize("driver", CHECK_DRIVERS)
def test_an_interrupt_that_the_target_raises_is_the_targets(driver, tmp_path):
    (run,) = checked(Interrupts, "quick", driver, tmp_path).failures
    assert run.failure.law == "error_contract"
    assert run.failure.message.startswith("commit raised KeyboardInterrupt")


@pytest.mark.parametrize("profile", IN_EACH_PROFILE)
@pytest.mark.parametrize("driver", CHECK_DRIVERS)
def test_a_call_that_hangs_is_a_finding(driver, profile, tmp_path, monkeypatch):
    monkeypatch.setattr(shrink, "HANG_SECONDS", 0.05)
    (run,) = checked(Hangs, profile, driver, tmp_path).failures
    assert run.failure.law == "termination"
    assert [op.name for op in run.failure.ops] == ["admit", "forward"]


@pytest.mark.parametrize("driver", ["random", *slow(*(name for name in CHECK_DRIVERS if name != "random"))])
def test_a_call_that_hangs_with_signals_blocked_is_a_finding(driver, tmp_path, monkeypatch):
    monkeypatch.setattr(shrink, "HANG_SECONDS", 0.05)
    (run,) = checked(HangsDeaf, "quick", driver, tmp_path, step_seconds=0.2).failures
    assert run.failure.law == "termination"
    assert [op.name for op in run.failure.ops] == ["admit", "forward"]


def test_a_target_that_forks_is_judged_once_and_leaves_nothing_running(tmp_path):
    before = processes()
    report = checked(ForksAway, "quick", "random", tmp_path, random_steps=20)
    assert len(report.runs) == 1
    assert wait_until(lambda: processes() <= before)


def processes() -> set[str]:
    """The processes of this session's user that run this test."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if "test_supervision" in line}


def test_a_target_that_dies_when_it_is_made_fails_without_an_operation():
    failure = run_ops_supervised(KVManagerModel, SitsInStart, KVScope(2, 1, 1, 2), (), Watchdog(1.0))
    assert failure.ops == ()
    assert failure.message == "the process ended with exit code 7"


def test_the_notes_have_what_was_tried_and_not_what_did_not_apply():
    scope = KVScope(2, 1, 1, 2)
    never = Op("finish", request="r9")
    admit = Op("admit", request="r0", tokens=[0], extra_key=None, n=1)
    forward = Op("forward", accept=None, abort=[], reverse=None)
    failure = run_ops_supervised(KVManagerModel, Exits, scope, (never, admit, forward), Watchdog(1.0))
    assert failure.ops == (admit, forward)


def test_notes_that_are_full_keep_their_beginning():
    notes = EpisodeNotes(size=400)
    notes.begin(KVScope(2, 1, 1, 2))
    ops = [Op("finish", request=f"r{n}") for n in range(100)]
    for op in ops:
        notes.add((op.name, op.args))
    scope, noted = notes.read(KVManagerModel)
    assert scope == KVScope(2, 1, 1, 2)
    assert 0 < len(noted) < 100
    assert list(noted) == ops[: len(noted)]


def test_a_child_tells_how_far_it_is():
    told = []

    def work(watchdog):
        watchdog.report(5)
        time.sleep(0.3)
        return "done"

    assert in_child(work, 5.0, told.append) == "done"
    assert told == [5]


def test_an_error_that_cannot_be_pickled_comes_back_as_its_text():
    class Local(Exception):
        pass

    def work(_watchdog):
        raise Local("what happened")

    with pytest.raises(RuntimeError, match="what happened"):
        in_child(work, 5.0)


def test_a_child_that_is_slow_before_it_calls_the_target_is_not_lost():
    def work(_watchdog):
        time.sleep(0.5)
        return "done"

    assert in_child(work, 0.1, began=lambda: False) == "done"
    with pytest.raises(ChildLost, match=r"no step for 0\.2 s"):
        in_child(work, 0.1)


def loop():
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("work", "error", "said"),
    [
        (lambda _: loop(), RuntimeError, r"no step for 0\.2 s, and the target was not called"),
        (lambda _: enter_target(loop, ()), ChildLost, r"no step for 0\.2 s, and no reaction"),
    ],
    ids=["harness", "target"],
)
def test_a_target_is_not_blamed_for_a_loop_of_the_harness(work, error, said, monkeypatch):
    monkeypatch.setattr(isolation, "OURS", (f'  File "{__file__}"',))
    with pytest.raises(error, match=said):
        in_child(work, 0.1)


def test_a_child_that_is_lost_before_it_does_anything_is_no_finding():
    with pytest.raises(ChildLost, match="exit code 3"):
        in_child(lambda _: os._exit(3), 5.0)


def command(*arguments, cwd, **options):
    return subprocess.run(
        [sys.executable, "-m", "kvlockstep", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.mark.parametrize(
    ("source", "how"),
    [("import os; os._exit(0)", "ended with exit code 0"), ("import ctypes; ctypes.string_at(0)", "died of SIGSEGV")],
)
def test_a_target_whose_import_ends_the_process_is_a_usage_error(source, how, tmp_path):
    (tmp_path / "mine.py").write_text(source)
    done = command("check", "kv_manager", "--target", "mine.py:Manager", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == f"kvlockstep: the process {how} while importing mine.py:Manager, without a result"


def test_a_target_that_ends_the_process_of_another_verb_is_a_violation(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\nfrom kvlockstep.reference.kv_manager import KVManager\n"
        "class Exits(KVManager):\n    def commit(self, rid, n): os._exit(0)\n"
    )
    for verb in (["quality", "--target", "mine.py:Exits"], ["diff", "--target", "mine.py:Exits", "--target", "blocks"]):
        done = command(*verb, cwd=tmp_path)
        assert done.returncode == 1, done
        assert "the process ended with exit code 0" in done.stderr + done.stdout


def test_a_target_that_ends_the_process_of_the_command_leaves_its_trace(tmp_path):
    """As one on a CUDA device may, which no forked child can use."""
    (tmp_path / "mine.py").write_text(
        "import os, sys\n"
        "from dataclasses import replace\n"
        "from pathlib import Path\n"
        "from kvlockstep.core.parent import waited_for\n"
        "from kvlockstep.core.profiles import profile_of\n"
        "from kvlockstep.reference.slot_pool import SlotPool\n"
        "from kvlockstep.runs.check import check_target\n"
        "from kvlockstep.targets import Target\n"
        "class Exits(SlotPool):\n    def occupy(self, slot): os._exit(9)\n"
        "profile = replace(profile_of('quick'), random_steps=500)\n"
        "def command():\n"
        "    target = Target('slot_pool', 'mine.py:Exits', Exits, device='cuda')\n"
        "    check_target(target, profile, seed=4, directory=Path('found'), drivers=('random',))\n"
        "    return 0\n"
        "sys.exit(waited_for(command))\n"
    )
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1, done
    (path,) = (tmp_path / "found").iterdir()
    trace = load_trace(path)
    assert (trace.law, trace.message) == ("error_contract", "the process ended with exit code 9")
    assert (trace.target, trace.driver, trace.seed) == ("mine.py:Exits", "random", 4)
    assert trace.ops[-1].name == "occupy"
    assert f"replay: kvlockstep replay found/{path.name} --target mine.py:Exits" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_reach_the_command_and_their_exit_codes_are_those_of_a_shell(number, code, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import pathlib\nfrom kvlockstep.reference.kv_manager import KVManager\n"
        "class Marks(KVManager):\n    def commit(self, *a): pathlib.Path('began').touch(); return super().commit(*a)\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-m", "kvlockstep", "check", "kv_manager", "--target", "mine.py:Marks", "--profile", "deep"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        # A shell that starts the tests in the background has them ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    assert wait_until((tmp_path / "began").exists, 120)
    started.send_signal(number)
    _, err = started.communicate(timeout=60)
    assert started.returncode == code
    assert ("interrupted" in err) == (number == signal.SIGINT)


def test_results_that_cannot_be_written_are_no_success(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvlockstep", "list"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "kvlockstep: cannot write the results: No space left on device\n"


def test_a_reader_that_has_gone_is_no_error_to_talk_about(tmp_path):
    listing = subprocess.Popen(
        [sys.executable, "-m", "kvlockstep", "list"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    listing.stdout.close()
    assert listing.stderr.read() == b""
    assert listing.wait() == 128 + signal.SIGPIPE


def test_a_closed_stdout_is_refused_at_once(tmp_path):
    done = command("list", cwd=tmp_path, preexec_fn=lambda: os.close(1))
    assert done.returncode == 2
    assert "standard output is closed" in done.stderr


def test_without_docstrings_it_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, "-OO", "-m", "kvlockstep", "list"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "-OO" in done.stderr


def test_the_trace_of_a_process_that_ended_has_the_answers_before(tmp_path):
    (run,) = checked(Exits, "quick", "random", tmp_path).failures
    assert run.failure.answers[0] == "cached 0"


class Forking(SlotPool):
    """Each call of `alloc` forks, and its child comes back from it."""

    def alloc(self):
        slot = super().alloc()
        if child := os.fork():
            os.waitpid(child, 0)
        return slot


def test_a_child_of_the_target_ends_where_it_comes_back(tmp_path):
    steps = tmp_path / "steps"

    def work(_watchdog):
        pool = Forking(3)
        for _ in range(3):
            call_target(pool.alloc)
            with steps.open("a") as file:
                file.write("x")
        return pool.free_count

    assert in_child(work, 10.0) == 0
    assert steps.read_text() == "xxx"


LEAVES_ONE = """
import os, time
from kvlockstep.reference.slot_pool import SlotPool

if os.fork() == 0:
    open("left", "w").write(str(os.getpid()))
    time.sleep(1000)
while not os.path.exists("left"):
    time.sleep(0.01)
"""


def test_a_process_that_the_import_of_a_target_left_ends_with_the_command(tmp_path):
    (tmp_path / "leaves_one.py").write_text(LEAVES_ONE)
    command = [sys.executable, "-m", "kvlockstep", "explore", "slot_pool", "--target", "leaves_one.py:SlotPool"]
    done = subprocess.run([*command, "--steps", "5"], cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    left = tmp_path / "left"
    assert wait_until(lambda: left.read_text() and not os.path.exists(f"/proc/{left.read_text()}/fd/0"))
