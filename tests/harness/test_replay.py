"""`replay` of files and directories, what does not apply, and whose code a trace may run."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter

import pytest
from watched import watched

from kvlockstep.core.trace import Trace, replay_line, save_trace, trace_text
from kvlockstep.drivers.episode import Replayed, play_ops, unapplied
from kvlockstep.models.core.op import Op
from kvlockstep.models.decode_graphs import DecodeGraphsScope
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.models.registry import model_of
from kvlockstep.models.slot_pool import SlotPoolScope
from kvlockstep.targets import resolve
from kvlockstep.targets.registry import known_divergences
from kvlockstep.targets.trusting import is_known

ALLOC = Op("alloc")
FAULT = "fault:pool-occupy-toggles"
EVIL = """
open("evil_ran", "w").write("it did")
from kvlockstep.reference.slot_pool import SlotPool
def go(slots): return SlotPool(slots)
"""
NO_FORKS = """
from kvlockstep.reference.kv_manager import KVManager
class Manager(KVManager):
    can_fork = False
"""


def pool_trace(target="pool", ops=(ALLOC,), law="accounting"):
    return Trace("slot_pool", SlotPoolScope(2), tuple(ops), ("0",) * len(ops), target=target, law=law)


BROKEN = (ALLOC, Op("occupy", slot=0))


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Writes modules that can be imported by name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)

    return write


FORK = (
    Op("admit", request="r0", tokens=[1], extra_key=None, n=1),
    Op("forward", accept=None, abort=[], reverse=None),
    Op("fork", request="r0", child="r1"),
    Op("finish", request="r1"),
)


def test_operations_that_do_not_apply_are_counted_and_named(run_cli, modules, tmp_path):
    modules(no_forks=NO_FORKS)
    trace = Trace("kv_manager", KVScope(2, 2, 2, 4), FORK, target="no_forks:Manager", law="content_equality")
    path = save_trace(trace, tmp_path)
    code, out, _ = run_cli("replay", path, "--trust")
    assert code == 3
    assert "2 of 4 operations did not apply: fork (operation 3), finish (operation 4)" in out
    assert out.endswith("NOT APPLICABLE\n")
    code, out, _ = run_cli("replay", path, "--trust", "--json")
    assert code == 3
    result = json.loads(out)
    assert (result["verdict"], result["word"]) == ("inconclusive", "NOT APPLICABLE")
    assert result["runs"][0]["cut"] == result["runs"][0]["note"]
    assert "fork (operation 3)" in result["runs"][0]["note"]


def test_a_law_that_was_not_evaluated_says_nothing():
    trace = pool_trace()
    assert not unapplied(trace, Replayed(None, evaluated=Counter(accounting=1)))
    assert unapplied(trace, Replayed(None)) == "the law accounting was never evaluated"
    assert not unapplied(trace.but(law="termination"), Replayed(None))


def test_what_is_skipped_has_its_number():
    ops = [FORK[0], Op("finish", request="nobody"), FORK[1]]
    factory = resolve("kv_manager", "reference").factory
    played = watched(play_ops, model_of("kv_manager"), factory, KVScope(2, 2, 2, 4), ops)
    assert played.skipped == ((1, ops[1]),)
    assert played.failure is None


def test_an_unknown_operation_is_no_trace_and_check_leaves_the_file(run_cli, tmp_path):
    failures = tmp_path / ".kvlockstep/failures"
    path = save_trace(pool_trace(), failures)
    path.write_text(path.read_text().replace('"alloc"', '"__init__"'))
    code, _, err = run_cli("replay", path)
    assert code == 2
    assert err.startswith(f"kvlockstep: {path}:2: malformed trace: slot_pool has no operation '__init__'")
    code, _, err = run_cli("check", "slot_pool", "--target", "pool", "--driver", "random")
    assert code == 2
    assert f"{path.name}:2: malformed trace" in err
    assert path.exists()


@pytest.mark.parametrize("verb", ["replay", "report"])
def test_an_operation_that_no_reference_can_do_names_its_line(run_cli, tmp_path, verb):
    ops = (Op("capture", lanes=1, tried=[]), Op("capture", lanes=1, tried=["__init__"]))
    scope = DecodeGraphsScope(2, 2, 4, 2)
    path = save_trace(Trace("decode_graphs", scope, ops, target="reference", law="agreement"), tmp_path)
    code, _, err = run_cli(verb, path)
    assert code == 2
    assert err.startswith(f"kvlockstep: {path}:3: malformed trace: the reference cannot do capture")


def test_several_files_and_directories_get_a_line_each_and_the_worst_verdict(run_cli, tmp_path):
    folder = tmp_path / "some/findings"
    fixed = save_trace(pool_trace(), folder)
    broken = save_trace(pool_trace(FAULT, BROKEN), folder)
    (folder / "requests.jsonl").write_text('{"timestamp": 0}\n')
    (folder / ".hidden.jsonl").write_text("")
    held = save_trace(pool_trace(law=""), tmp_path)
    code, out, err = run_cli("replay", held, "some")
    assert code == 1
    assert out.splitlines()[0] == f"HOLDS {held}"
    assert f"FIXED {fixed.relative_to(tmp_path)}" in out.splitlines()
    assert any(line.startswith(f"VIOLATED {broken.relative_to(tmp_path)}: ") for line in out.splitlines())
    assert len(out.splitlines()) == 3
    assert "some/findings/requests.jsonl: not a kvlockstep trace, skipped" in err
    code, out, _ = run_cli("replay", held, fixed, "--json")
    assert code == 0
    assert [run["verdict"] for run in json.loads(out)["runs"]] == ["holds", "holds"]


@pytest.mark.parametrize("arguments", [(), ("empty",), ("nosuch.jsonl", "empty")])
def test_nothing_to_replay(run_cli, tmp_path, arguments):
    (tmp_path / "empty").mkdir()
    code, out, err = run_cli("replay", *arguments)
    assert code == 2
    assert not out
    assert len(err.splitlines()) <= 4


def test_bad_input_is_said_before_anything_is_played(run_cli, tmp_path):
    good = save_trace(pool_trace(), tmp_path)
    (tmp_path / "bad.jsonl").write_text(good.read_text().replace("alloc", "bogus"))
    code, out, err = run_cli("replay", good, "bad.jsonl")
    assert code == 2
    assert not out
    assert "bad.jsonl:2:" in err


@pytest.mark.parametrize("verb", ["replay", "report"])
@pytest.mark.parametrize("form", ["evil:go", "./evil.py:go", "{here}/evil.py:go"])
def test_a_trace_runs_no_code_that_nobody_named(run_cli, modules, tmp_path, verb, form):
    modules(evil=EVIL)
    spec = form.format(here=tmp_path)
    path = save_trace(pool_trace(spec), tmp_path)
    code, _, err = run_cli(verb, path)
    assert code == 2
    assert f"{path}:1: the trace names the target {spec!r}" in err
    assert not (tmp_path / "evil_ran").exists()
    for named in (("--trust",), ("--target", spec)):
        assert run_cli(verb, path, *named)[0] == 0
    assert (tmp_path / "evil_ran").exists()
    assert run_cli(verb, path, "--target", "pool")[0] == 0


def test_a_configured_target_is_trusted(run_cli, modules, tmp_path):
    modules(evil=EVIL)
    path = save_trace(pool_trace("evil:go"), tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.kvlockstep.targets]\nslot_pool = ["evil:go"]\n')
    assert run_cli("replay", path)[0] == 0
    (tmp_path / "other.toml").write_text('[tool.kvlockstep.targets]\nblock_pool = ["evil:go"]\n')
    assert run_cli("replay", path, "--config", "other.toml")[0] == 2


@pytest.mark.parametrize(
    ("spec", "known"),
    [
        ("pool", True),
        ("reference", True),
        ("kvlockstep.impl.slot_pool:SlotPool", True),
        (FAULT, True),
        ("kvlockstep.core.files:os.kill", False),
        ("kvlockstep.impl.slot_pool:np.fromfile", False),
        ("pool.py:SlotPool", False),
        ("os:kill", False),
        ("blocks", False),
    ],
)
def test_ours_are_the_targets_that_are_listed_and_not_all_that_our_modules_import(spec, known):
    assert is_known("slot_pool", spec) == known


def test_the_target_of_a_known_divergence_is_known():
    for one in known_divergences()[::10]:
        assert is_known(one.contract, one.target)
        assert not is_known("slot_pool", one.target)


def test_a_registered_target_is_known(monkeypatch):
    monkeypatch.setattr("kvlockstep.targets.trusting.known_targets", lambda _contract: {"mine": "my_package:make"})
    assert is_known("slot_pool", "mine")
    assert is_known("slot_pool", "my_package:make")
    assert is_known("slot_pool", "mine@cuda")
    assert not is_known("slot_pool", "my_package:other")


def test_the_replay_line_can_be_pasted():
    assert replay_line("pool", "a.jsonl") == "kvlockstep replay a.jsonl"
    assert replay_line("fault:x", "a.jsonl") == replay_line("graphs@cuda", "a.jsonl") == "kvlockstep replay a.jsonl"
    line = replay_line("my dir/$(x).py:go", "a b.jsonl")
    assert shlex.split(line) == ["kvlockstep", "replay", "a b.jsonl", "--target", "my dir/$(x).py:go"]


def test_a_script_of_a_trace_has_no_line_of_the_traces_own(run_cli, tmp_path):
    trace = pool_trace("x:y\nimport evil")
    path = tmp_path / "a.jsonl"
    path.write_text(trace_text(trace))
    assert run_cli("report", path, "-o", "a.py")[0] == 0
    assert not [line for line in (tmp_path / "a.py").read_text().splitlines() if line.startswith("import evil")]
