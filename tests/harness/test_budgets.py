"""Budgets are work: what a check finds does not depend on how fast the machine is, and a cut by time is said."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import pytest
from driving import explore
from watched import watched

from kvlockstep.core import profiles
from kvlockstep.impl.variants.kv_manager import Announces
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.slot_pool import SlotPoolModel, SlotPoolScope
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_manager.contract import BlockStored
from kvlockstep.reference.slot_pool import SlotPool

BUSY = "while True: pass"


@contextlib.contextmanager
def busy_loops():
    """What is started inside has one core, and shares it with a loop. Where cores cannot be chosen, each has a loop."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if cores:
        os.sched_setaffinity(0, {min(cores)})
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(1 if cores else os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
        if cores:
            os.sched_setaffinity(0, cores)


def checked(directory, *arguments):
    """All that a check says but for the time it took: exit code, runs, the bytes of its traces."""
    command = [sys.executable, "-m", "kvlockstep", "check", *arguments, "--json", "--dir", str(directory)]
    done = subprocess.run(command, capture_output=True, check=False)
    document = json.loads(done.stdout)
    runs = [{k: v for k, v in run.items() if k not in ("seconds", "trace")} for run in document["runs"]]
    traces = {path.name: path.read_bytes() for path in directory.glob("*.jsonl")}
    return done.returncode, document["verdict"], runs, traces


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("slot_pool --target pool", 0),
        ("kv_manager --target fault:kv-publishes-drafts --driver random", 1),
    ],
)
def test_a_check_does_the_same_beside_busy_loops(arguments, code, tmp_path):
    alone = checked(tmp_path / "alone", *arguments.split())
    with busy_loops():
        beside = checked(tmp_path / "beside", *arguments.split())
    assert alone == beside
    assert alone[0] == code
    assert bool(alone[3]) == (code == 1)


def test_a_check_that_its_safety_limit_cuts_off_is_inconclusive_and_says_so(run_cli, monkeypatch):
    monkeypatch.setattr(profiles, "SHORTEST_LIMIT", 0.0)
    monkeypatch.setattr(profiles, "SLOWEST", float("inf"))
    code, out, _ = run_cli("check", "slot_pool", "--target", "pool", "--json")
    document = json.loads(out)
    assert (code, document["verdict"]) == (3, "inconclusive")
    assert (
        document["runs"][0]["cut"]
        == f"explore stopped at its limit of 0 s after 5 of {profiles.profile_of('quick').explore_steps:,} steps"
    )
    assert document["runs"][0]["note"] == document["runs"][0]["cut"]
    assert [run["verdict"] for run in document["runs"]] == ["inconclusive", "holds", "holds"]
    assert not document["missed"]


def test_a_time_that_the_user_wishes_is_said_and_no_fault(run_cli):
    code, out, _ = run_cli("explore", "block_pool", "--target", "reference", "--time", "0.1s")
    assert code == 0
    assert "explore stopped at its limit of 0.1 s after" in out


def test_exploring_stops_after_the_steps_that_the_user_wishes(run_cli):
    results = []
    for steps in ("500", "500", "1000"):
        _, out, _ = run_cli("explore", "block_pool", "--target", "reference", "--steps", steps, "--json")
        results.append([(run["steps"], run["states"]) for run in json.loads(out)["runs"]])
    assert results[0] == results[1] != results[2]


def test_steps_that_are_repeated_count():
    outcomes = [watched(explore, SlotPoolModel, SlotPool, SlotPoolScope(4), steps=n) for n in (5_000, 10_000)]
    shallow, deep = (outcome.steps for outcome in outcomes)
    assert shallow < 2_500
    assert deep < 2 * shallow, "deeper states cost more"


def test_an_exhausted_scope_leaves_its_budget_to_the_others():
    tiny, large = SlotPoolScope(0), SlotPoolScope(4)
    alone = watched(explore, SlotPoolModel, SlotPool, large, steps=2_900)
    both = watched(explore, SlotPoolModel, SlotPool, tiny, large, steps=3_000)
    assert both.states > alone.states
    assert not both.exhausted


def test_no_scope_waits_for_another():
    fails = SlotPoolModel, PoolOfThree
    outcome = watched(explore, *fails, SlotPoolScope(4), SlotPoolScope(3), steps=3_000)
    assert outcome.failure is not None
    assert outcome.failure.scope == SlotPoolScope(3)


class PoolOfThree(SlotPool):
    def alloc(self):
        slot = super().alloc()
        assert len(self._versions) != 3 or slot != 2
        return slot


class HalfHashed(KVManager):
    """The key of a block says only the first half of the sequence up to its end (vllm#26296)."""

    def _key(self, extra_key, tokens):
        return super()._key(extra_key, tokens[: len(tokens) // self.block_size * (self.block_size // 2 or 1)])


class ReportsPages(Announces):
    """A hit is reported to listeners again, cut by another size of block (vllm#50118)."""

    def admit(self, rid, tokens, extra_key, n):
        cached = super().admit(rid, tokens, extra_key, n)
        if cached:
            page = max(1, self.block_size // 2)
            ends = range(self.block_size, cached + 1, self.block_size)
            keys = tuple((extra_key, tuple(tokens[:end])) for end in ends)
            self._events.append(BlockStored(keys, None, tuple(tokens[: len(keys) * page]), page, extra_key))
        return cached


class AlikeKeys(KVManager):
    """A key is told from others by its hash: -1 and -2 have one."""

    def _key(self, extra_key, tokens):
        return super()._key(extra_key if extra_key is None else hash(extra_key), tokens)


@pytest.mark.slow
@pytest.mark.parametrize("make", [HalfHashed, ReportsPages, AlikeKeys])
def test_exploration_in_ci_finds_what_needs_blocks_of_two_tokens_or_keys_that_are_alike(make):
    steps = profiles.profile_of("ci").explore_steps
    outcome = watched(explore, KVManagerModel, make, *KVManagerModel.small_scopes, steps=steps)
    assert outcome.failure is not None
    assert len(outcome.failure.ops) <= 5
