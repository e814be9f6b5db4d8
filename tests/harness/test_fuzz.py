"""Campaigns: findings survive interrupts and lost workers, and do not depend on the number of workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from campaigns import campaign as until
from campaigns import is_fork_of_us

from kvlockstep.campaign import running
from kvlockstep.reference.slot_pool import SlotPool
from kvlockstep.targets import Target, resolve


def campaign(target, directory, **changes):
    return until(target, directory, **{"seconds": 1.5, **changes})


def test_clean_target(tmp_path):
    done = campaign(resolve("slot_pool", "reference"), tmp_path)
    assert done.steps > 1000
    assert not done.findings
    assert not done.missed


@pytest.mark.parametrize("jobs", [1, 2])
def test_findings_are_written_once_each(tmp_path, jobs):
    done = campaign(resolve("slot_pool", "fault:pool-occupy-toggles"), tmp_path, jobs=jobs)
    assert done.failures > len(done.findings) > 0
    assert {p.name for p in tmp_path.glob("findings/*.jsonl")} == set(done.findings)
    assert "no_aliasing" in {trace.law for trace, _ in done.findings.values()}


class Hangs(SlotPool):
    def occupy(self, slot):
        time.sleep(3600)


def test_a_hanging_target_is_a_finding(tmp_path):
    done = campaign(Target("slot_pool", "hangs", Hangs), tmp_path, seconds=1, jobs=1)
    (trace, _), *_ = done.findings.values()
    assert trace.law == "termination"
    assert [op.name for op in trace.ops] == ["occupy"]


def test_the_corpus_of_a_slow_target_is_left_to_the_next_run(tmp_path, monkeypatch):
    def recorded():
        return {path.name for path in tmp_path.glob("corpus/*")}

    reference = resolve("slot_pool", "reference")
    with monkeypatch.context() as slow:
        slow.setattr(running, "CORPUS_SECONDS", -60.0)
        assert campaign(reference, tmp_path, jobs=1, seconds=0.5).ledger.shortest
        assert not recorded()
    done = campaign(reference, tmp_path, jobs=1, shards=1)
    assert recorded() == {f"slot_pool-{goal}.jsonl" for goal in done.ledger.shortest}


class Dies(SlotPool):
    def occupy(self, slot):
        super().occupy(slot)
        os.kill(os.getpid(), signal.SIGKILL)


class HangsForSignalsToo(SlotPool):
    def occupy(self, slot):
        super().occupy(slot)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(3600)


def test_a_target_that_kills_its_process_is_a_finding(tmp_path):
    done = campaign(Target("slot_pool", "dies", Dies), tmp_path, jobs=1, seconds=1)
    assert done.lost_workers
    (trace, _), *_ = done.findings.values()
    assert trace.law == "error_contract"
    assert "SIGKILL" in trace.message
    assert trace.ops[-1].name == "occupy"
    assert len(trace.ops) <= 2


def test_a_target_deaf_to_signals_is_cut_off(tmp_path):
    done = campaign(Target("slot_pool", "deaf", HangsForSignalsToo), tmp_path, jobs=1, seconds=1)
    (trace, _), *_ = done.findings.values()
    assert trace.law == "termination"
    assert trace.ops[-1].name == "occupy"


def test_a_killed_worker_is_reported_and_replaced(tmp_path):
    steps = []

    def kill_first_worker(state):
        if not steps:
            children = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False)
            pids = [int(p) for p in children.stdout.split()]
            workers = [p for p in pids if is_fork_of_us(p)]
            if workers and state.steps:
                os.kill(workers[0], signal.SIGKILL)
                steps.append(state.steps)

    done = campaign(resolve("slot_pool", "reference"), tmp_path, jobs=1, seconds=3, progress=kill_first_worker)
    assert steps
    assert len(done.lost_workers) == 1
    assert "SIGKILL" in done.lost_workers[0]
    assert done.steps > steps[0]
    assert not done.findings


def interrupted(target, directory, when):
    """Interrupts a campaign as soon as a file like `when` is there; returns its exit code and output."""
    command = [sys.executable, "-m", "kvlockstep", "fuzz", "slot_pool", "--target", target]
    process = subprocess.Popen(
        [*command, "--time", "60", "--jobs", "2", "--dir", str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background has them ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    timer = threading.Timer(60, process.kill)
    timer.start()
    while not list(directory.glob(when)) and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    timer.cancel()
    assert "interrupted" in out
    return process.returncode, out


def test_interrupt_keeps_findings(tmp_path):
    code, out = interrupted("fault:pool-occupy-toggles", tmp_path, "findings/*.jsonl")
    assert code == 1
    assert "VIOLATED no_aliasing" in out


def test_an_interrupted_campaign_without_a_finding_is_no_success(tmp_path):
    code, out = interrupted("pool", tmp_path, "status.json")
    assert code == 130
    assert "VIOLATED" not in out
