"""`explain`, `list` and shell completion."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

import kvlockstep
from kvlockstep.commands import list as listing
from kvlockstep.commands.explain import bugs, explain, names_to_explain
from kvlockstep.drivers import CHECK_DRIVERS, SHARD_DRIVERS
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.models.registry import MODELS
from kvlockstep.properties.why import WHY
from kvlockstep.reference import contracts
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.show.bug_reports import described, link, public
from kvlockstep.show.explanations import KINDS
from kvlockstep.targets import registry as targets


def test_everything_is_explained(run_cli):
    for name in names_to_explain():
        explained = explain(name)
        assert explained["id"] == name
        assert explained["kind"] in KINDS.replace(" or ", ", ").split(", ")
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
        assert (
            "fault kv-fork-no-copy of kv_manager: After a fork, a shared partial block is written without a copy."
            in out
        )
        assert "must violate write_isolation: A write never changes" in out
        assert "see it: kvlockstep check kv_manager --target fault:kv-fork-no-copy" in out


def test_a_contract_explains_its_methods_and_their_types(run_cli):
    """Who has only the wheel reads nothing else about them."""
    _, out, _ = run_cli("explain", "kv_scheduler")
    assert "  schedule() -> Batch\n    Decides the next batch" in out
    assert "\ntypes\n  Batch(items, preempted, copies): " in out
    assert "  Item(rid, start, n, slots, tokens, samples, drafts, groups): The part of a request that a" in out
    _, out, _ = run_cli("explain", "Item")
    assert out.startswith("type Item of kv_scheduler\n  Item(rid, start, n,")
    assert re.search(r"stated in reference/kv_scheduler/batch\.py:\d+$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "field", "trait"),
    [
        ("Loading", "cached: int", "tiers"),
        ("Fetching", "", "moves"),
        ("Admitted", "n: int", "cuts_chunks"),
        ("Group", "reach: int = 0", "groups"),
    ],
)
def test_what_a_trait_brings_is_explained(run_cli, name, field, trait):
    code, out, _ = run_cli("explain", f"kv_manager.{name}")
    assert code == 0
    assert out.startswith(f"type {name} of kv_manager\n")
    assert f"  from kvlockstep.reference.contracts import {name}\n" in out
    assert f"    {field}\n" in out or not field
    assert f"  only of targets with {trait}\n" in out


def test_every_class_and_function_for_adapters_is_explained_with_its_import(run_cli):
    exported = {name: getattr(contracts, name) for name in contracts.__all__}
    explained = {name: of for name, of in exported.items() if isinstance(of, type) or inspect.isfunction(of)}
    ours = [name for name, of in explained.items() if of.__module__.startswith("kvlockstep.")]
    assert {"OutOfSlots", "Group", "KVManagerTarget", "Batch", "needed"} <= set(ours)
    for name in ours:
        for part in explain(name)["contracts"]:
            assert part["import"] == f"from kvlockstep.reference.contracts import {name}"
            assert part["statement"], name
            assert part["stated"], name
    code, out, _ = run_cli("explain", "OutOfSlots")
    assert (code, out.partition("\n")[0]) == (0, "type OutOfSlots")
    code, out, _ = run_cli("explain", "needed")
    assert (code, out.partition("\n")[0]) == (0, "function needed")


def test_a_name_of_several_words_needs_no_quotes(run_cli):
    quoted, plain = run_cli("explain", "kv_manager rule 5"), run_cli("explain", "kv_manager", "rule", "5")
    assert quoted == plain
    assert plain[1].startswith("rule 5 of kv_manager\n")


def test_a_contract_shows_what_a_target_must_offer(run_cli):
    _, out, _ = run_cli("explain", "slot_pool")
    assert "make(slots)" in out
    assert "  free(slot: int) -> None\n" in out
    assert "  free_count: int\n" in out
    for law in MODELS["slot_pool"].laws:
        assert f"  {law.id}: {law.statement}" in out


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kv_manager.chunk", ["trait chunk of kv_manager", "chunk = False", "A prompt may be computed in chunks."]),
        ("preempted_last", ["trait preempted_last of kv_scheduler", "stated in reference/kv_scheduler/traits.py:"]),
        ("commit", ["method commit of kv_manager", "commit(rid: str, n: int) -> None"]),
        ("events", ["only of targets with event_listener"]),
        ("slot_pool.alloc", ["Takes the lowest free slot", "stated in reference/slot_pool.py:"]),
        ("exhausted", ["goal exhausted of slot_pool", "stated in models/slot_pool.py:"]),
        ("rule 5", ["rule 5 of kv_manager", "rule 5 of kv_scheduler", "`output_reserve` would fit"]),
        ("kv_manager rule 12", ["rule 12 of kv_manager", "four different orders"]),
        ("kv_manager/purity", ["  rule 12: The judge asks its questions in four different orders"]),
        ("kv_manager/admission_honesty", ["Rule 5: ", "  rule 5: Admission: a refusal is a violation if"]),
    ],
)
def test_parts_of_a_contract(run_cli, name, expected):
    code, out, _ = run_cli("explain", name)
    assert code == 0
    for text in expected:
        assert text in out


def test_places_are_where_they_say():
    """A place is a file of the package and the line of the statement."""
    rooms = Path(kvlockstep.__file__).parent.parent
    for name in ("write_isolation", "chunk", "commit", "exhausted", "rule 5"):
        for part in explain(name)["contracts"]:
            file, _, line = part["stated"].partition(":")
            folders = (rooms, rooms / "kvlockstep")
            text = next(folder / file for folder in folders if (folder / file).exists()).read_text()
            stated = text.splitlines()[int(line) - 1 :][:2]
            assert re.search(rf"@law|\b{name.removeprefix('rule ')}\b", stated[0]), (name, part["stated"])


def test_why_comes_first_and_bugs_are_few(run_cli):
    _, out, _ = run_cli("explain", "write_isolation")
    lines = out.splitlines()
    assert lines[1].startswith("Why it matters: ")
    bugs_shown = lines[lines.index("seen in") + 1 : -1]
    assert len([line for line in bugs_shown if not line.startswith("    ")]) == 5
    assert "    https://github.com/vllm-project/vllm/issues/417" in lines
    assert re.fullmatch(r"  and \d+ more; --json has all of them", lines[-1])


def test_a_contract_lists_its_optional_methods_and_traits(run_cli):
    _, out, _ = run_cli("explain", "kv_manager")
    assert out.startswith("contract kv_manager: The KV-cache manager of an engine")
    assert "  withdraw(rid: str) -> None  (can_withdraw)\n" in out
    for contract in CONTRACTS.values():
        explained = explain(contract.name)
        assert set(explained["optional"].values()) == set(contract.announced.values())
        assert len(explained["traits"]) == len(contract.traits)


@pytest.mark.parametrize(
    ("report", "address"),
    [
        ("vllm#417", "https://github.com/vllm-project/vllm/issues/417"),
        ("bytedance-iaas/sglang#1", "https://github.com/bytedance-iaas/sglang/issues/1"),
        ("nobody-knows#1", None),
        ("rule 12", None),
        ("seed 003: a block is handed out twice", None),
    ],
)
def test_links(report, address):
    assert link(report) == address


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
        (
            "acounting",
            "no contract, law, fault, goal, trait, method, type, function or rule 'acounting'; did you mean accounting",
        ),
        ("zzz", "method, type, function or rule 'zzz'; `kvlockstep list` shows them"),
        ("slot_pool/purity", "method, type, function or rule 'slot_pool/purity'"),
        ("kv_manager.rule 99", "method, type, function or rule 'kv_manager.rule 99'"),
        ("fault:nosuch", "method, type, function or rule 'nosuch'"),
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
    assert part["statement"].startswith("Queries change nothing")


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
        EntryPoint("kv_manager.blocks", "my_package.adapter:make", targets.ENTRY_POINTS),
    ]
    for entry in entries:
        vars(entry)["dist"] = SimpleNamespace(name="my-package")
    for module in (targets, listing):
        monkeypatch.setattr(module, "entry_points", lambda group: entries)
    code, out, _ = run_cli("list")
    assert code == 0
    assert re.search(r"mine +my_package.adapter:make \(registered by my-package\)", out)
    assert "kv_manger.mine of my-package is ignored: names are CONTRACT.NAME" in out
    assert "kv_manager.blocks of my-package is ignored: kvlockstep has a target of this name" in out
    assert targets.known_targets("kv_manager")["blocks"] == targets.OWN_TARGETS["kv_manager"]["blocks"]


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


def test_reports_that_anybody_can_read_come_first():
    rows = described(["seed 002: append looks at nothing", "vllm#417", "nowhere#1"])
    assert [row["id"] for row in rows] == ["vllm#417", "seed 002: append looks at nothing", "nowhere#1"]
    assert public(["seed 002: append looks at nothing", "vllm#417"]) == ["vllm#417"]
