"""Adding a fault, as CONTRIBUTING.md says: a class with `@fault`, then its trace. Nothing else has to know of it."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from kvlockstep.core.trace import load_trace
from kvlockstep.impl import faulty
from kvlockstep.impl.faulty import FAULTS, faults_of
from kvlockstep.impl.faulty.fault import fault

ID = "bp-frees-one-fewer"
SENTENCE = "free keeps the last of several blocks."
SOURCE = f'''
from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.block_pool import BlockPool


@fault("{ID}", law="no_double_free", seen=("mutant",))
class FreesOneFewer(BlockPool):
    """{SENTENCE}

    A call with one block frees it.
    """

    def free(self, blocks):
        super().free(blocks[:-1] if len(blocks) > 1 else blocks)
'''


@pytest.fixture
def added(tmp_path, monkeypatch):
    """A module of faults in a folder that impl/faulty/block_pool reaches into, as if it lay there."""
    (tmp_path / "late.py").write_text(SOURCE)
    package = importlib.import_module("kvlockstep.impl.faulty.block_pool")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    faulty.import_faults()
    yield FAULTS[ID]
    FAULTS.pop(ID)
    del sys.modules["kvlockstep.impl.faulty.block_pool.late"]


def test_a_module_of_faults_is_found(added):
    assert (added.contract, added.what, added.law) == ("block_pool", SENTENCE, "no_double_free")
    assert faults_of("block_pool")[-1] is added


def test_the_new_fault_is_caught_and_its_trace_written(added, run_cli, tmp_path):
    code, out, _ = run_cli("score", "--fault", ID, "--profile", "ci", "--traces", tmp_path)
    assert code == 0, out
    trace = load_trace(tmp_path / "block_pool" / f"{ID}.jsonl", "block_pool")
    assert (trace.target, trace.law) == (f"fault:{ID}", added.law)


def test_the_new_fault_is_listed_and_explained(added, run_cli):
    _, out, _ = run_cli("list")
    assert re.search(rf"{ID} +{SENTENCE}", out)
    _, out, _ = run_cli("explain", ID)
    assert f"fault {ID} of block_pool: {SENTENCE}\n  A call with one block frees it.\n" in out


@pytest.mark.parametrize(
    ("id_", "module", "doc", "message"),
    [
        ("kv-fork-no-copy", "kvlockstep.impl.faulty.slot_pool", "It is wrong.", "another fault has this id"),
        ("new", "elsewhere", "It is wrong.", "is outside kvlockstep.impl.faulty"),
        ("new", "kvlockstep.impl.faulty.slot_pool", "wrong somewhere", "begin its docstring with a full sentence"),
        ("new", "kvlockstep.impl.faulty.slot_pool", None, "begin its docstring with a full sentence"),
    ],
)
def test_a_wrong_declaration_says_what_is_wrong(id_, module, doc, message):
    before = dict(FAULTS)
    with pytest.raises(ValueError, match=message):
        fault(id_, law="accounting", seen=("mutant",))(type("Wrong", (), {"__module__": module, "__doc__": doc}))
    assert before == FAULTS


@pytest.mark.parametrize("declared", FAULTS.values(), ids=lambda fault: fault.id)
def test_what_a_fault_does_is_one_sentence_in_one_line(declared):
    assert len(declared.what) <= 100
    assert declared.make.__doc__.partition("\n")[0] == declared.what
    assert not declared.what.startswith(("What ", "Whether ", "How "))
