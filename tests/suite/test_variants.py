"""Variants by name, and what showed that a right one was wrong. `kvlockstep score` shows that no law blames one."""

from __future__ import annotations

from pathlib import Path

import pytest
from watched import watched

from kvlockstep.core.errors import UsageError
from kvlockstep.core.trace import load_trace
from kvlockstep.drivers.episode import play_ops
from kvlockstep.models.registry import model_of
from kvlockstep.targets import resolve

TRACES = sorted((Path(__file__).parents[1] / "data" / "variants").glob("*.jsonl"))


def test_both_prefixes_name_the_same_variant():
    assert resolve("kv_manager", "harmless:by-token").factory is resolve("kv_manager", "variant:by-token").factory
    with pytest.raises(UsageError, match=r"unknown target 'variant:none'.*known for kv_manager: .*by-token"):
        resolve("kv_manager", "variant:none")


@pytest.mark.parametrize("file", TRACES, ids=lambda file: file.stem)
def test_a_variant_holds_where_it_did_not(file):
    trace = load_trace(file)
    factory = resolve(trace.contract, trace.target).factory
    played = watched(play_ops, model_of(trace.contract), factory, trace.scope, trace.ops)
    assert played.failure is None, played.failure
    assert not played.skipped
    assert played.judged(trace.law)
