"""Calls in worker processes, and the verbs that take several targets at the same time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from waiting import wait_until

from kvlockstep.core.isolation import ChildLost, in_child
from kvlockstep.core.processes import WorkerLost, in_order, in_processes, unheard
from kvlockstep.core.profiles import profile_of
from kvlockstep.reference.slot_pool import SlotPool
from kvlockstep.runs.check import check_targets
from kvlockstep.targets import Target

SQUARES = [unheard(lambda n=n: n * n) for n in range(7)]


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("jobs", [1, 3, 20])
def test_each_call_has_its_result(jobs):
    assert sorted(in_processes(SQUARES, jobs)) == [(n, n * n) for n in range(7)]
    assert list(in_order(in_processes(SQUARES, jobs))) == [n * n for n in range(7)]


def test_no_call_waits_for_a_slow_one(tmp_path):
    def slow():
        while not (tmp_path / "last").exists():
            time.sleep(0.01)
        return "slow"

    calls = [unheard(slow), *SQUARES, unheard((tmp_path / "last").touch)]
    numbers = [number for number, _ in in_processes(calls, 2)]
    assert numbers[:-1] == list(range(1, len(calls)))
    assert list(in_order(in_processes(calls, 2)))[:3] == ["slow", 0, 1]


def test_what_a_call_says_is_heard_before_its_result():
    def call(say):
        say("begun")
        say({"steps": 7})
        return "done"

    heard = []
    assert next(in_processes([call], 1, heard.append)) == (0, "done")
    assert heard == ["begun", {"steps": 7}]


def test_what_a_call_raises_is_raised_with_where_it_was():
    def fails():
        raise KeyError("this one")

    with pytest.raises(KeyError, match="this one") as raised:
        list(in_processes([*SQUARES, unheard(fails)], 2))
    assert "in fails" in raised.value.__notes__[0]


def test_a_lost_child_of_a_worker_keeps_its_reason():
    with pytest.raises(ChildLost, match="exit code 3") as lost:
        list(in_processes([unheard(lambda: in_child(lambda _watchdog: os._exit(3), 5.0))], 1))
    assert not lost.value.hung


def test_a_worker_that_ends_is_told():
    with pytest.raises(WorkerLost, match="the process died of SIGKILL"):
        list(in_processes([*SQUARES, unheard(lambda: os.kill(os.getpid(), signal.SIGKILL))], 2))


def test_whoever_ends_early_leaves_no_process():
    """Nor one that a call has started in a child: what the child's parent does when it unwinds is done."""

    def call(say):
        def work(_watchdog):
            say(subprocess.Popen(["sleep", "1000"]).pid)
            threading.Event().wait()

        say(os.getpid())
        return in_child(work, 60.0)

    def stop(pid):
        pids.append(pid)
        if len(pids) == 2:
            raise KeyboardInterrupt

    pids = []
    with pytest.raises(KeyboardInterrupt):
        list(in_processes([call], 1, stop))
    assert wait_until(lambda: all(map(gone, pids)))


def check(*arguments, cwd):
    command = [sys.executable, "-m", "kvlockstep", "check", "slot_pool", *arguments, "--driver", "random", "--json"]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_targets_checked_at_the_same_time_have_the_results_of_one_after_the_other(tmp_path):
    def without_times(run):
        return {key: value for key, value in run.items() if key != "seconds"}

    names = ["pool", "fault:pool-occupy-toggles", "fault:pool-keeps-one", "reference"]
    reports = []
    for jobs in ("1", "3"):
        done = check(*(f"--target={name}" for name in names), "--jobs", jobs, cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        reports.append(json.loads(done.stdout))
        for trace in (tmp_path / ".kvlockstep/failures").iterdir():
            trace.unlink()
    assert [run["target"] for run in reports[0]["runs"]] == names
    one, several = ([without_times(run) for run in report.pop("runs")] for report in reports)
    assert one == several
    assert reports[0] == reports[1]


def test_a_target_that_needs_a_thread_of_the_command_is_not_checked_beside_others(tmp_path):
    """No worker has that thread: what waits for it would hang there, and be blamed."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()

        class Waits(SlotPool):
            def alloc(self, *arguments):
                return pool.submit(super().alloc, *arguments).result()

        targets = [Target("slot_pool", "waits", Waits), Target("slot_pool", "reference", SlotPool)]
        profile = replace(profile_of("quick"), random_steps=500, step_seconds=0.2)
        waits, _ = check_targets(targets, profile, directory=tmp_path, drivers=("random",), jobs=2)
        assert not waits.failures
        assert "ThreadPoolExecutor" in waits.notes[0]


def test_several_at_a_time_and_in_this_process_is_a_usage_error(tmp_path):
    done = check("--in-process", "--jobs", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert "--jobs 2: --in-process checks one target after the other" in done.stderr


def test_an_interrupt_ends_a_score(tmp_path):
    started = subprocess.Popen(
        [sys.executable, "-m", "kvlockstep", "score", "--contract", "kv_manager"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        # A shell that starts the tests in the background has them ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    time.sleep(3)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert (started.returncode, err.strip()) == (130, "kvlockstep: interrupted")
