"""The traces that a check finds in its directory: which are played, which are named, which may go."""

from __future__ import annotations

import re

import pytest

from kvlockstep.core.errors import UsageError
from kvlockstep.core.profiles import profile_of
from kvlockstep.core.trace import Trace, save_trace
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.models.slot_pool import SlotPoolScope
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.runs.check import check_target
from kvlockstep.runs.saved_traces import named_by_us
from kvlockstep.targets import Target, resolve

FAULT = "fault:pool-occupy-toggles"
BROKEN = (Op("alloc"), Op("occupy", slot=0))


def trace(target="pool", ops=BROKEN, law="error_contract"):
    return Trace("slot_pool", SlotPoolScope(2), tuple(ops), target=target, law=law)


def checked(target, directory):
    """A check that only plays what is saved."""
    return check_target(target, profile_of("quick"), directory=directory, drivers=())


POOL = resolve("slot_pool", "pool")


def test_a_trace_of_ours_that_holds_now_goes(tmp_path):
    path = save_trace(trace(), tmp_path)
    report = checked(POOL, tmp_path)
    assert report.notes == [f"FIXED {path.name}: error_contract holds now, the file is removed"]
    assert not path.exists()


@pytest.mark.parametrize("name", ["slot_pool-error_contract-3b1ec09e.jsonl", "mine.jsonl"])
def test_old_names_and_names_of_its_own_are_played(tmp_path, name):
    path = save_trace(trace(FAULT), tmp_path, name)
    report = checked(resolve("slot_pool", FAULT), tmp_path)
    (run,) = report.runs
    assert (run.driver, run.verdict, run.trace) == ("replay", "violated", str(path))
    assert report.notes == [f"STILL FAILS {path.name}: no new episodes are played until it is fixed"]


def test_a_file_that_we_did_not_name_is_kept(tmp_path):
    path = save_trace(trace(), tmp_path, "mine.jsonl")
    report = checked(POOL, tmp_path)
    assert report.notes == [
        "FIXED mine.jsonl: error_contract holds now; the file is kept, since kvlockstep did not name it"
    ]
    assert path.exists()


def test_what_is_skipped_under_a_name_of_its_own_is_said(tmp_path):
    save_trace(trace("another"), tmp_path, "theirs.jsonl")
    save_trace(trace(""), tmp_path, "nobodys.jsonl")
    (tmp_path / "requests.jsonl").write_text('{"timestamp": 0}\n')
    save_trace(trace("another"), tmp_path)  # belongs to another check
    report = checked(POOL, tmp_path)
    assert report.notes == [
        "skipped nobodys.jsonl: its header names no target",
        "skipped requests.jsonl: no kvlockstep trace",
        "skipped theirs.jsonl: a trace for slot_pool on another",
    ]
    assert len(list(tmp_path.iterdir())) == 4


def test_a_damaged_trace_of_ours_ends_the_check_and_stays(tmp_path):
    path = save_trace(trace(), tmp_path)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(UsageError, match=path.name):
        checked(POOL, tmp_path)
    assert path.exists()


class NoForks(KVManager):
    can_fork = False


def test_what_does_not_apply_stays_and_the_check_is_inconclusive(tmp_path):
    ops = (
        Op("admit", request="r0", tokens=[1], extra_key=None, n=1),
        Op("forward", accept=None, abort=[], reverse=None),
        Op("fork", request="r0", child="r1"),
    )
    path = save_trace(Trace("kv_manager", KVScope(2, 2, 2, 4), ops, target="mine:M", law="coverage"), tmp_path)
    report = checked(Target("kv_manager", "mine:M", NoForks), tmp_path)
    (note,) = report.notes
    assert note.startswith(f"NOT APPLICABLE {path.name}: 1 of 3 operations did not apply: fork (operation 3)")
    assert report.verdict == "inconclusive"
    assert report.runs[0].note == note
    assert path.exists()


def test_two_targets_keep_their_traces_side_by_side(tmp_path):
    for name in (FAULT, "fault:pool-free-twice"):
        save_trace(trace(name, law="conservation"), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "contract"),
    [
        ("kv_manager-write_isolation-3b1ec09e.jsonl", "kv_manager"),
        ("kv_manager-write_isolation-my_manager-M-3b1ec09e.jsonl", "kv_manager"),
        ("unshrunk-kv_store-agreement-x.y-Z-3b1ec09e-2.jsonl", "kv_store"),
        ("kv_manager-hit.jsonl", ""),
        ("my-bug.jsonl", ""),
    ],
)
def test_names_of_ours(tmp_path, name, contract):
    assert named_by_us(tmp_path / name) == contract


MENDED_LATER = """
from pathlib import Path
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.reference.kv_manager import KVManager

def make(blocks, block_size):
    return (KVManager if Path("mended").exists() else FAULTS["kv-key-modulo"].make)(blocks, block_size)
"""


def test_a_false_hit_that_is_gone_is_fixed_and_no_gap(run_cli, tmp_path):
    """Without the hit prefix_soundness has nothing to judge: the answers show that the target changed."""
    (tmp_path / "mine.py").write_text(MENDED_LATER)
    check = ("check", "kv_manager", "--target", "mine.py:make", "--driver", "random")
    code, out, _ = run_cli(*check)
    assert code == 1
    assert "VIOLATED prefix_soundness" in out
    (tmp_path / "mended").touch()
    code, out, _ = run_cli(*check)
    assert code == 0, out
    assert re.search(r"FIXED .*: admit \(operation \d+\) returned 'cached \d+' and now returns 'cached 0'", out)
