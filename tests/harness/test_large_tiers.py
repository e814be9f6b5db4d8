"""A check notes once that a tier is as large as the pool, and fails nothing for it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvlockstep.core.profiles import profile_of
from kvlockstep.reference.kv_manager.groups.geometries import FullAndWindow
from kvlockstep.reference.kv_manager.tiered import TieredManager
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler
from kvlockstep.runs.check import check_target
from kvlockstep.targets import Target, resolve

FEW = replace(profile_of("quick"), explore_steps=50, random_steps=100)


def notes_of(target: Target, tmp_path) -> list[str]:
    return check_target(target, FEW, directory=tmp_path, drivers=("explore", "random")).notes


class Half(TieredManager):
    def _tier_size(self, blocks):
        return max(1, blocks // 2)


class Whole(TieredManager):
    def _tier_size(self, blocks):
        return blocks


def test_a_tier_as_large_as_the_pool_is_noted_once_with_its_sizes(tmp_path):
    (note,) = notes_of(Target("kv_manager", "mine:Whole", Whole), tmp_path)
    assert note.startswith("with 8 blocks in the pool the tier host has 8 units: a tier so large seldom evicts")
    assert "docs/transfers.md" in note


def test_of_a_scheduler_too(tmp_path):
    (note,) = notes_of(Target("kv_scheduler", "mine:Tiered", TieredScheduler), tmp_path)
    assert note.startswith("with 8 blocks in the pool the tier host has 16 units")


@pytest.mark.parametrize(
    "target",
    [
        Target("kv_manager", "mine:Half", Half),
        Target("kv_manager", "mine:FullAndWindow", FullAndWindow),
        resolve("kv_scheduler", "tiered"),
        resolve("kv_scheduler", "fault:sched-store-unfenced"),
    ],
    ids=lambda target: target.name,
)
def test_nothing_is_said_of_smaller_tiers_of_none_and_of_the_packages_own(target, tmp_path):
    assert notes_of(target, tmp_path) == []


def test_it_stands_behind_the_verdict_and_in_json(run_cli, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler\nclass Mine(TieredScheduler): pass\n"
    )
    command = "check", "kv_scheduler", "--target", "mine.py:Mine", "--driver", "explore"
    _, out, _ = run_cli(*command)
    lines = [line for line in out.splitlines() if line]
    assert lines[0].startswith("kv_scheduler on mine.py:Mine")
    assert lines[1].startswith("  with 8 blocks in the pool the tier host has 16 units")
    _, out, _ = run_cli(*command, "--json")
    (note,) = json.loads(out)["notes"]["kv_scheduler mine.py:Mine"]
    assert note.startswith("with 8 blocks in the pool")
