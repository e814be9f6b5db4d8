"""What traces and adapters of an older layout name is still found."""

from __future__ import annotations

import importlib.util

import pytest
from places import FAULT_TRACES

from kvlockstep.reference import contracts
from kvlockstep.reference.kv_scheduler import transfers as older
from kvlockstep.targets.importing import load
from kvlockstep.targets.moved import MOVED

TRACE = FAULT_TRACES / "kv_manager" / "kv-abort-leaks.jsonl"


@pytest.mark.parametrize("module", MOVED)
def test_the_module_of_a_factory_is_where_the_table_says(module):
    assert importlib.util.find_spec(MOVED[module]) is not None


def test_a_factory_is_found_by_the_module_that_had_it():
    old, new = "kvlockstep.impl.block_manager:BlockManager", "kvlockstep.impl.kv_manager.blocks:BlockManager"
    assert load(old) is load(new)


@pytest.mark.parametrize(
    "target", ["kvlockstep.impl.block_manager:BlockManager", "harmless:hits-half"], ids=["older module", "older prefix"]
)
def test_a_trace_that_names_its_target_as_an_older_layout_did_replays(run_cli, tmp_path, target):
    header, *lines = TRACE.read_text().splitlines()
    older = header.replace("fault:kv-abort-leaks", target)
    trace = tmp_path / "older.jsonl"
    trace.write_text("\n".join([older, *lines]) + "\n")
    code, out, err = run_cli("replay", trace)
    assert (code, err) == (0, "")
    assert "FIXED" in out


def test_adapters_find_the_words_of_the_contracts_in_one_place():
    for name in contracts.__all__:
        assert getattr(contracts, name).__class__ is not None
    assert {"BlockStored", "BlockRemoved", "AllBlocksCleared", "InvalidArgument", "KVManagerTarget"} <= set(
        contracts.__all__
    )
    assert (older.Transfer, older.TierUnits) == (contracts.Transfer, contracts.TierUnits)
