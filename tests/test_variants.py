"""No law blames a variant: a manager that keeps the contract in a way of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlockstep.core.errors import UsageError
from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.random_walk import random_walk
from kvlockstep.impl.variants.kv_manager import VARIANTS
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.targets import resolve

TRACE = Path(__file__).parent / "data" / "faults" / "kv_manager" / "kv-abort-leaks.jsonl"


@pytest.mark.parametrize("manager", VARIANTS.values(), ids=VARIANTS)
def test_no_false_alarm(manager):
    with Watchdog(5.0).watching() as watchdog:
        outcome = random_walk(KVManagerModel, manager, seed=11, watchdog=watchdog, steps=40_000)
    assert outcome.failure is None, failure_page(outcome.failure)
    missed = {goal.id for goal in KVManagerModel.goals if not outcome.reach[goal.id]}
    assert missed <= (outcome.unreachable or set())


def test_a_trace_that_names_a_variant_by_its_older_prefix_replays(run_cli, tmp_path):
    header, *lines = TRACE.read_text().splitlines()
    older = header.replace("fault:kv-abort-leaks", "harmless:hits-half")
    trace = tmp_path / "older.jsonl"
    trace.write_text("\n".join([older, *lines]) + "\n")
    code, out, err = run_cli("replay", trace)
    assert (code, err) == (0, "")
    assert "FIXED" in out


def test_both_prefixes_name_the_same_variant():
    assert resolve("kv_manager", "harmless:by-token").factory is resolve("kv_manager", "variant:by-token").factory
    with pytest.raises(UsageError, match=r"unknown target 'variant:none'.*known for kv_manager: .*by-token"):
        resolve("kv_manager", "variant:none")
