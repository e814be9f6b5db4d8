"""Variants by name. `kvlockstep score` shows that no law blames one."""

from __future__ import annotations

import pytest
from places import FAULT_TRACES

from kvlockstep.core.errors import UsageError
from kvlockstep.targets import resolve

TRACE = FAULT_TRACES / "kv_manager" / "kv-abort-leaks.jsonl"


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
