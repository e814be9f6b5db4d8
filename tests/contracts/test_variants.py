"""Right variants of a reference that once were wrong: what showed it is played again."""

from __future__ import annotations

from pathlib import Path

import pytest
from watched import watched

from kvlockstep.core.trace import load_trace
from kvlockstep.drivers.episode import play_ops
from kvlockstep.models.registry import model_of
from kvlockstep.targets.registry import resolve

TRACES = sorted((Path(__file__).parents[1] / "data" / "variants").glob("*.jsonl"))


@pytest.mark.parametrize("file", TRACES, ids=lambda file: file.stem)
def test_a_variant_holds_where_it_did_not(file: Path) -> None:
    trace = load_trace(file)
    factory = resolve(trace.contract, trace.target).factory
    played = watched(play_ops, model_of(trace.contract), factory, trace.scope, trace.ops)
    assert played.failure is None, played.failure
    assert not played.skipped
    assert played.judged(trace.law)
