"""`explain`, `list` and shell completion."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from kvlockstep.commands import list as listing
from kvlockstep.commands.explain import bugs, explain, names_to_explain
from kvlockstep.drivers import CHECK_DRIVERS, SHARD_DRIVERS
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.models.registry import MODELS
from kvlockstep.properties.why import WHY
from kvlockstep.targets import registry as targets


def test_everything_is_explained(run_cli):
    for name in names_to_explain():
        explained = explain(name)
        assert explained["id"] == name
        assert explained["kind"] in ("law", "fault", "contract")
        json.dumps(explained)
    for name in ("kv_manager", "accounting", "kv-fork-no-copy"):
        code, out, err = run_cli("explain", name)
        assert (code, err) == (0, "")
        assert name in out


def test_every_law_says_why_it_matters():
    for model in MODELS.values():
        for law in model.laws:
            assert len(WHY.get(law.id, "")) > 40, law.id
            assert WHY[law.id] != law.statement


def test_a_law_of_several_contracts(run_cli):
    _, out, _ = run_cli("explain", "no_double_free")
    for contract, model in MODELS.items():
        for law in model.laws:
            if law.id == "no_double_free":
                assert f"{contract}: {law.statement}" in out
    assert "Why it matters: " + WHY["no_double_free"] in out
    _, out, _ = run_cli("explain", "slot_pool/no_double_free")
    assert "slot_pool: Only a held slot can be freed." in out
    assert "kv_manager" not in out


def test_a_law_names_its_bugs_and_faults(run_cli):
    _, out, _ = run_cli("explain", "kv_manager/write_isolation")
    assert f"vllm#417: {bugs()['vllm#417']['symptom']}" in out
    expected = [f.id for f in FAULTS.values() if f.contract == "kv_manager" and f.law == "write_isolation"]
    assert "kv-fork-no-copy" in expected
    assert f"faults that must violate it: {', '.join(expected)}" in out


def test_a_fault(run_cli):
    for name in ("kv-fork-no-copy", "fault:kv-fork-no-copy"):
        _, out, _ = run_cli("explain", name)
        assert "fault kv-fork-no-copy of kv_manager: a shared block is written" in out
        assert "must violate write_isolation: A write changes nothing" in out
        assert "see it: kvlockstep check kv_manager --target fault:kv-fork-no-copy" in out


def test_a_contract_shows_what_a_target_must_offer(run_cli):
    _, out, _ = run_cli("explain", "slot_pool")
    assert "make(slots)" in out
    assert "  free(slot: int) -> None\n" in out
    assert "  free_count: int\n" in out
    for law in MODELS["slot_pool"].laws:
        assert f"  {law.id}: {law.statement}" in out


def test_reports_that_are_cited_are_known():
    cited = {id_ for model in MODELS.values() for law in model.laws for id_ in law.answers}
    cited |= {id_ for fault in FAULTS.values() for id_ in fault.seen}
    reports = {id_ for id_ in cited if re.fullmatch(r"[\w./-]+#\d+", id_)}
    assert len(reports) > 100
    unknown = reports - set(bugs())
    assert len(unknown) <= len(reports) // 20, sorted(unknown)
    assert all(bug["symptom"] and bug["cause"] for bug in bugs().values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("acounting", "no contract, law or fault 'acounting'; did you mean accounting"),
        ("zzz", "no contract, law or fault 'zzz'; `kvlockstep list` shows them"),
        ("slot_pool/purity", "no contract, law or fault 'slot_pool/purity'"),
        ("fault:nosuch", "no contract, law or fault 'nosuch'"),
    ],
)
def test_an_unknown_name(run_cli, name, message):
    code, out, err = run_cli("explain", name)
    assert code == 2
    assert message in err
    assert not out


def test_json(run_cli):
    _, out, _ = run_cli("explain", "slot_pool", "--json")
    assert set(json.loads(out)) >= {"kind", "id", "statement", "methods", "laws", "goals", "targets", "faults", "bugs"}
    _, out, _ = run_cli("explain", "purity", "--json")
    (part,) = (part for part in json.loads(out)["contracts"] if part["contract"] == "kv_manager")
    assert part["statement"].startswith("Asking changes nothing")


def test_list_shows_drivers_and_everything_else(run_cli):
    code, out, _ = run_cli("list")
    assert code == 0
    drivers = out[out.index("\ndrivers\n") :]
    for driver in (*CHECK_DRIVERS, *SHARD_DRIVERS, "replay"):
        assert re.search(rf"^  {driver} +\w", drivers, re.MULTILINE)
    for fault in FAULTS.values():
        assert f" {fault.id} " in out
    _, out, _ = run_cli("list", "--json")
    assert set(json.loads(out)) == set(MODELS)


def test_targets_of_other_packages(run_cli, monkeypatch):
    entries = [
        EntryPoint("kv_manager.mine", "my_package.adapter:make", targets.ENTRY_POINTS),
        EntryPoint("kv_manger.mine", "my_package.adapter:make", targets.ENTRY_POINTS),
    ]
    for entry in entries:
        vars(entry)["dist"] = SimpleNamespace(name="my-package")
    for module in (targets, listing):
        monkeypatch.setattr(module, "entry_points", lambda group: entries)
    code, out, _ = run_cli("list")
    assert code == 0
    assert re.search(r"mine +my_package.adapter:make \(registered by my-package\)", out)
    assert "kv_manger.mine of my-package is ignored: names are CONTRACT.NAME" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("kvlockstep ex", "explain"),
        ("kvlockstep explain write_iso", "write_isolation"),
        ("kvlockstep explain kv-fork-no", "kv-fork-no-copy"),
        ("kvlockstep new-target mine --contract kv_m", "kv_manager"),
        ("kvlockstep check --jun", "--junit"),
        ("kvlockstep check slot_po", "slot_pool"),
        ("kvlockstep fuzz slot_po", "slot_pool"),
    ],
)
def test_shell_completion(words, expected):
    asked = {"_KVLOCKSTEP_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    code = "import sys; sys.argv = ['kvlockstep']; from kvlockstep.commands.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert f"plain,{expected}" in done.stdout.splitlines(), done.stderr
