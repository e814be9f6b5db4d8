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
from kvlockstep.core.processes import WorkerLost, in_order, in_processes, result_of, unheard
from kvlockstep.core.profiles import profile_of
from kvlockstep.reference.slot_pool import SlotPool
from kvlockstep.runs.check import check_target, check_targets
from kvlockstep.targets import Target

SQUARES = [unheard(lambda n=n: n * n) for n in range(7)]


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def ends(calls, jobs, hear=print):
    with in_processes(calls, jobs, hear) as ended:
        return list(ended)


@pytest.mark.parametrize("jobs", [1, 3, 20])
def test_each_call_has_its_result(jobs):
    ended = ends(SQUARES, jobs)
    assert sorted((end.number, end.result) for end in ended) == [(n, n * n) for n in range(7)]
    assert list(in_order(ended)) == [n * n for n in range(7)]


def test_no_call_waits_for_a_slow_one(tmp_path):
    def slow():
        while not (tmp_path / "last").exists():
            time.sleep(0.01)
        return "slow"

    ended = ends([unheard(slow), *SQUARES, unheard((tmp_path / "last").touch)], 2)
    assert [end.number for end in ended if end.number][:-1] == list(range(1, 8))
    assert ended[-1].number in (0, 8)
    assert list(in_order(ended))[:3] == ["slow", 0, 1]


def test_what_a_call_says_is_heard_before_its_result():
    def call(say):
        say("begun")
        say({"steps": 7})
        return "done"

    heard = []
    with in_processes([call], 1, heard.append) as ended:
        assert next(ended).result == "done"
    assert heard == ["begun", {"steps": 7}]


def test_what_a_call_raises_is_raised_in_its_turn_with_where_it_was():
    def fails():
        raise KeyError("this one")

    results = in_order(ends([SQUARES[0], SQUARES[1], unheard(fails), SQUARES[2]], 2))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(KeyError, match="this one") as raised:
        next(results)
    assert "in fails" in raised.value.__notes__[0]


def test_a_lost_child_of_a_worker_keeps_its_reason():
    (end,) = ends([unheard(lambda: in_child(lambda _watchdog: os._exit(3), 5.0))], 1)
    with pytest.raises(ChildLost, match="exit code 3") as lost:
        result_of(end)
    assert not lost.value.hung
    assert "raised in a worker process" in lost.value.__notes__[0]


@pytest.mark.parametrize(
    ("call", "error"),
    [(threading.Lock, TypeError), (lambda: sys.exit(3), SystemExit)],
    ids=["cannot be pickled", "exits"],
)
def test_a_call_without_a_usable_result_says_why(call, error):
    (end,) = ends([unheard(call)], 1)
    assert isinstance(end.error, error)


def test_a_lost_worker_costs_its_own_call():
    ended = ends([SQUARES[3], unheard(lambda: os.kill(os.getpid(), signal.SIGKILL)), *SQUARES], 1)
    lost = {end.number: end.error for end in ended if end.error is not None}
    assert len(ended) == 9
    assert set(lost) == {1}
    assert isinstance(lost[1], WorkerLost)
    assert str(lost[1]) == "a worker was lost: the process died of SIGKILL"


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
        ends([call], 1, stop)
    assert wait_until(lambda: all(map(gone, pids)))


def test_a_target_in_a_worker_is_not_blamed_for_the_end_of_the_worker(tmp_path):
    class Slow(SlotPool):
        def alloc(self, *arguments):
            time.sleep(0.002)
            return super().alloc(*arguments)

    def call(say):
        say("begins")
        profile = replace(profile_of("quick"), random_steps=5_000)
        target = Target("slot_pool", "slow", Slow, device="cuda")
        return check_target(target, profile, directory=tmp_path, drivers=("random",))

    def stop(_said):
        time.sleep(0.3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ends([call], 1, stop)
    assert not list(tmp_path.iterdir())


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
        with check_targets(targets, lambda _: profile, directory=tmp_path, drivers=("random",), jobs=2) as results:
            waits, _ = results
        assert not waits.failures
        assert "ThreadPoolExecutor" in waits.notes[0]


def test_a_target_that_is_named_twice_is_checked_once(tmp_path):
    saved = tmp_path / ".kvlockstep/failures"
    assert check("--target=fault:pool-keeps-one", cwd=tmp_path).returncode == 1
    (path,) = saved.iterdir()
    path.write_text(path.read_text().replace("fault:pool-keeps-one", "pool"))
    done = check("--target=pool", "--target=pool", "--jobs=2", cwd=tmp_path)
    assert done.returncode == 0, done
    assert len(json.loads(done.stdout)["runs"]) == 1
    assert not list(saved.iterdir())


def test_several_at_a_time_and_in_this_process_is_a_usage_error(tmp_path):
    done = check("--in-process", "--jobs", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert "--jobs 2: --in-process checks one target after the other" in done.stderr


@pytest.mark.parametrize("verb", [["score", "--contract", "kv_manager"], ["check", "--profile=deep", "--jobs=2"]])
def test_an_interrupt_ends_what_has_workers(verb, tmp_path):
    started = subprocess.Popen(
        [sys.executable, "-m", "kvlockstep", *verb],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        # A shell that starts the tests in the background has them ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    try:
        # The process that waits, the command, and its workers.
        assert wait_until(lambda: processes_of(started.pid) >= 4, 60)
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=60)
    finally:
        started.kill()
    assert started.returncode == 130
    assert err.strip().endswith("kvlockstep: interrupted")


def processes_of(pid):
    """Counts a process and all below it."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = dict(map(int, line.split()) for line in listed.splitlines())

    def is_below(other):
        return other == pid or (other in parents and is_below(parents[other]))

    return sum(map(is_below, parents))
