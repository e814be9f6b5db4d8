"""The table of engines: what is missing is skipped with a reason, what is known to diverge is told apart."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from driving import walk
from engine_targets import target_or_skip

from kvlockstep.commands import engines
from kvlockstep.commands.cli import cli
from kvlockstep.commands.engines import check_engines, markdown, replay_known
from kvlockstep.core.profiles import profile_of
from kvlockstep.core.trace import Trace, load_trace, save_trace
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.models.registry import model_of
from kvlockstep.reference.kv_index.contract import IndexTraits
from kvlockstep.reference.kv_tier.contract import TierTraits
from kvlockstep.runs.play_trace import replay_trace
from kvlockstep.show.console import traits_text
from kvlockstep.targets import registry as targets
from kvlockstep.targets.registry import (
    ENGINE_TARGETS,
    OWN_TARGETS,
    KnownDivergence,
    engine_names,
    known_divergences,
    known_good_targets,
    known_targets,
)

FAULT = "fault:kv-abort-leaks"
TINY = dataclasses.replace(profile_of("quick"), explore_steps=1_000, examples=2, random_steps=3_000)


@pytest.fixture
def only(monkeypatch):
    """A registry with these engines under kv_manager and nothing else."""

    def registry(**targets):
        monkeypatch.setattr(engines, "ENGINE_TARGETS", {"kv_manager": targets})
        monkeypatch.setitem(ENGINE_TARGETS, "kv_manager", targets)

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
    (row,) = check_engines(TINY, 0, tmp_path, jobs=2)
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
    (leaks, fine) = check_engines(TINY, 0, tmp_path, jobs=2)
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
    assert [row.status for row in rows] == ["still there", "no longer occurs", "now leak_freedom", "not played here"]
    page = markdown([], rows, "quick")
    link = "[leaks-on-abort](divergences.md#leaks-on-abort)"
    assert f"| {link} | bug | leak_freedom | 1 | still there |" in page


def test_one_contract_is_checked_when_asked(only, monkeypatch, tmp_path):
    only(fine="kvlockstep.reference.kv_manager:KVManager")
    monkeypatch.setattr(engines, "known_divergences", lambda: [known("leak_freedom", tmp_path)])
    assert [row.target for row in check_engines(TINY, 0, tmp_path, contracts=["kv_manager"])] == ["fine"]
    assert not [*check_engines(TINY, 0, tmp_path, contracts=["kv_tier"])]
    assert [row.id for row in replay_known(TINY, contracts=["kv_manager"])] == ["leaks-on-abort"]
    assert not [*replay_known(TINY, contracts=["kv_tier"])]
    done = CliRunner().invoke(cli, ["engines", "--contract", "kv_manger"])
    assert "kv_manager" in str(done.exception)


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


def test_a_folder_of_an_engine_declares_its_targets_and_imports_nothing():
    for name in engine_names():
        package = importlib.import_module(f"kvlockstep.impl.engines.{name}")
        (folder,) = package.__path__
        assert package.TARGETS
        for contract, declared in package.TARGETS.items():
            for target, path in declared.items():
                assert ENGINE_TARGETS[contract][target] == path, "two engines have a target of this name"
                assert path.startswith(f"{package.__name__}.")
                assert target not in OWN_TARGETS[contract]
        assert "import" not in Path(folder, "__init__.py").read_text()


def test_a_folder_is_all_that_an_engine_needs(tmp_path, monkeypatch):
    """Its targets are listed and run by `engines`, and its known divergences are replayed."""
    folder = tmp_path / "my_engine"
    folder.mkdir()
    make = "kvlockstep.impl.engines.my_engine.manager:make"
    (folder / "__init__.py").write_text(f'"""Mine."""\n\nTARGETS = {{"kv_manager": {{"mine": "{make}"}}}}\n')
    (folder / "manager.py").write_text("from kvlockstep.impl.faulty.kv_manager.release import LosesOnAbort as make\n")
    trace = known("leak_freedom", folder).trace
    lines = ['id = "leaks"', 'class = "bug"', 'version = "1"', 'contract = "kv_manager"', 'target = "mine"']
    lines += ['law = "leak_freedom"', f'trace = "{trace.name}"', 'reason = "It leaks."']
    (folder / "known.toml").write_text("\n".join(["[[divergence]]", *lines]))
    package = importlib.import_module("kvlockstep.impl.engines")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    assert engine_names()[-1] == "my_engine"
    declared = targets.declared_by([importlib.import_module("kvlockstep.impl.engines.my_engine")])
    monkeypatch.setitem(ENGINE_TARGETS, "kv_manager", declared["kv_manager"])
    assert known_targets("kv_manager")["mine"] == make
    assert "mine" not in known_good_targets("kv_manager")
    assert [row.status for row in replay_known(TINY) if row.id == "leaks"] == ["still there"]


def test_a_contract_that_there_is_not_is_named():
    with pytest.raises(ValueError, match=r"my_engine.TARGETS: no contract 'kv_manger'; known: slot_pool"):
        targets.declared_by([SimpleNamespace(__name__="my_engine", TARGETS={"kv_manger": {}})])


def test_every_factory_of_an_adapter_is_a_target_or_in_a_test():
    """A make that nobody names is run by nobody."""
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_engine*.py"))
    for name in engine_names():
        (folder,) = map(Path, importlib.import_module(f"kvlockstep.impl.engines.{name}").__path__)
        named = tests + "".join(
            Path(folder, file).read_text() for file in ("__init__.py", "known.toml") if Path(folder, file).exists()
        )
        for adapter in folder.rglob("*.py"):
            made = re.findall(r"^(?:def )?(make\w*)(?: = |\(blocks)", adapter.read_text(), re.MULTILINE)
            assert [make for make in made if not re.search(rf"\b{make}\b", named)] == [], adapter


@pytest.mark.parametrize(("contract", "name"), [(c, name) for c, names in ENGINE_TARGETS.items() for name in names])
def test_a_target_of_an_engine_holds(contract, name):
    """Every engine that is there, without a test of its own; one with known divergences is replayed below."""
    target = target_or_skip(contract, name)
    if any((known.contract, known.target) == (contract, name) for known in known_divergences()):
        pytest.skip("it is known to diverge")
    # An interpreted kernel takes long for a step: this seed begins with two short episodes, in scopes of their own.
    seed, steps = (46, 40) if getattr(target.factory, "interpreted", False) else (1, 1_000)
    # The first calls of an engine may import and compile.
    assert walk(model_of(contract), target.factory, steps, seed=seed, limit=60.0).failure is None


@pytest.mark.parametrize("known", known_divergences(), ids=lambda known: known.id)
def test_a_known_divergence_is_still_there(known):
    target = target_or_skip(known.contract, known.target)
    again = replay_trace(target, load_trace(known.trace, known.contract), TINY)
    assert again is not None
    assert again.law == known.law


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


def test_traits_of_every_contract_fit_into_the_table():
    """A tier has units and no blocks, an index has neither."""
    assert traits_text(TierTraits(total=4, extra_key=True, spares_offered=False)) == "extra_key, spares_offered=False"
    assert traits_text(IndexTraits()) == "none"
