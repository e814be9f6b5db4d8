"""The table of engines: what is missing is skipped with a reason, what is known to diverge is told apart."""

from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner

from kvlockstep.commands import engines
from kvlockstep.commands.cli import cli
from kvlockstep.commands.engines import check_engines, markdown, replay_known
from kvlockstep.core.profiles import profile_of
from kvlockstep.core.trace import Trace, load_trace, save_trace
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.targets.registry import BUILT_IN, KnownDivergence, known_divergences

FAULT = "fault:kv-abort-leaks"
TINY = dataclasses.replace(profile_of("quick"), explore_steps=1_000, examples=2, random_steps=3_000)


@pytest.fixture
def only(monkeypatch):
    """A registry with these engines under kv_manager and nothing else."""

    def registry(**targets):
        monkeypatch.setattr(engines, "BUILT_IN", {"kv_manager": targets})
        monkeypatch.setattr(engines, "ENGINES", tuple(targets))
        for name, path in targets.items():
            monkeypatch.setitem(BUILT_IN["kv_manager"], name, path)

    return registry


def known(law, tmp_path):
    trace = Trace(
        "kv_manager",
        KVScope(1, 1, 1, 1),
        (
            Op("admit", request="r0", tokens=[0], extra_key=None, n=1),
            Op("forward", accept=None, abort=["r0"], reverse=None),
        ),
    )
    path = save_trace(trace, tmp_path, "known.jsonl")
    return KnownDivergence("leaks-on-abort", "bug", "1", "kv_manager", FAULT, law, path, "It leaks.")


def test_a_missing_engine_is_a_skipped_row(only, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    lines = "from kvlockstep.impl.engines.loading import find", "find('no_engine', 'at/all.py', 'a shop')"
    (tmp_path / "adapter_of_none.py").write_text("\n".join(lines))
    only(absent="adapter_of_none:make")
    (row,) = check_engines(TINY, 0, tmp_path)
    assert (row.verdict, row.target) == ("skipped", "absent")
    assert "a shop" in row.reason


def test_an_engine_that_cannot_be_loaded_is_an_error(only, tmp_path):
    only(broken="kvlockstep.impl.engines.nothing:make")
    done = CliRunner().invoke(cli, ["engines", "--dir", str(tmp_path), "--json"])
    assert done.exit_code == 4
    (row,) = json.loads(done.stdout)["engines"]
    assert (row["verdict"], row["target"]) == ("error", "broken")
    assert "kvlockstep.impl.engines.nothing" in row["reason"]


def test_a_violation_that_is_known_is_told_apart(only, tmp_path, monkeypatch):
    only(
        leaks="kvlockstep.impl.faulty.kv_manager.release:LosesOnAbort", fine="kvlockstep.reference.kv_manager:KVManager"
    )
    (leaks, fine) = check_engines(TINY, 0, tmp_path)
    assert leaks.verdict == "violated"
    assert fine.law == ""
    listed = dataclasses.replace(known(leaks.law, tmp_path), target="leaks")
    monkeypatch.setattr(engines, "known_divergences", lambda: [listed])
    (again, _) = check_engines(TINY, 0, tmp_path)
    assert (again.verdict, again.reason) == ("known", "known: leaks-on-abort")


def test_a_known_divergence_that_is_gone_is_reported(monkeypatch, tmp_path):
    there = known("leak_freedom", tmp_path)
    gone = dataclasses.replace(there, target="reference")
    other = dataclasses.replace(there, law="purity")
    missing = dataclasses.replace(there, target="no.such:engine")
    monkeypatch.setattr(engines, "known_divergences", lambda: [there, gone, other, missing])
    rows = list(replay_known(TINY))
    assert [row.status for row in rows] == ["still there", "no longer occurs", "now leak_freedom", "engine missing"]
    page = markdown([], rows, "quick")
    assert "### leaks-on-abort: bug of fault:kv-abort-leaks 1, leak_freedom, still there" in page


def test_misuse_is_replayed_when_asked(monkeypatch, tmp_path):
    bug = known("leak_freedom", tmp_path)
    misuse = dataclasses.replace(bug, id="frees-twice", kind="misuse")
    monkeypatch.setattr(engines, "known_divergences", lambda: [bug, misuse])
    assert [row.id for row in replay_known(TINY)] == [bug.id]
    assert [row.id for row in replay_known(TINY, misuse=True)] == [bug.id, "frees-twice"]


def test_every_known_divergence_has_its_trace_and_class():
    assert known_divergences()
    for divergence in known_divergences():
        assert divergence.kind in ("bug", "misuse", "policy")
        assert load_trace(divergence.trace, divergence.contract).law == divergence.law


def test_a_folder_that_is_not_there_is_named(tmp_path):
    done = CliRunner().invoke(cli, ["check", "kv_manager", "--engine-path", str(tmp_path / "none")])
    assert "no such folder" in str(done.exception)


def test_the_table_is_written_and_printed(only, tmp_path):
    only(fine="kvlockstep.reference.kv_manager:KVManager")
    page = tmp_path / "engines.md"
    done = CliRunner().invoke(cli, ["engines", "--dir", str(tmp_path), "-o", str(page), "--json"])
    assert done.exit_code == 0
    assert [row["verdict"] for row in json.loads(done.stdout)["engines"]] == ["holds"]
    assert "| fine | kv_manager |" in page.read_text()
