"""A trace that somebody changed at will is played, or refused in one sentence; it never breaks kvlockstep."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import FAULT_TRACES
from watched import watched

from kvlockstep.core.errors import UsageError
from kvlockstep.core.trace import load_trace
from kvlockstep.drivers.episode import Replayed, play_ops
from kvlockstep.models.core.op import Unplayable
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.targets import resolve

SAVED = {contract: [] for contract in MODELS}
for file in sorted(FAULT_TRACES.rglob("*.jsonl")):
    text = file.read_text()
    SAVED[json.loads(text.partition("\n")[0])["contract"]].append(text)

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from([2**31, 2**63, -(2**63), 10**30, float("nan"), float("inf"), 0.5]),
    st.sampled_from(["", "r0", "r1", "h0", "stale", "reset", "capture", "__init__", "\x1b[2J", "\ud800", "../x"]),
    st.lists(st.integers(-1, 4), max_size=4),
    st.lists(st.lists(st.integers(-1, 3), min_size=2, max_size=2), max_size=2),
    st.dictionaries(st.sampled_from(["op", "args", "end", "r0"]), st.integers(-1, 3), max_size=2),
)


def places_in(value, path=()):
    """Every place in a JSON value, as the keys that lead there."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places_in(child, (*path, key))


def changed(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def like(value, path):
    """Values of the type that stands in a place, so that most of what is changed is still a trace."""
    for key in path:
        value = value[key]
    if isinstance(value, bool) or value is None:
        return st.sampled_from([None, True, False])
    if isinstance(value, int):
        return st.one_of(st.integers(-2, 8), st.sampled_from([1000, 2**22, 2**31, 2**62, -(2**63) + 1]))
    if isinstance(value, str):
        return st.sampled_from(["r0", "r1", "r2", "h0", "h1", "stale", "slots", "release", "copy", "side"])
    return st.just([]) if isinstance(value, list) else st.just({})


@st.composite
def mutated_lines(draw, contract):
    """A trace with lines left out, doubled or swapped, and values changed, its end put right."""
    *lines, _end = map(json.loads, draw(st.sampled_from(SAVED[contract])).splitlines())
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["value", "value", "value", "drop", "double", "swap"])):
            case "drop":
                del lines[at:][:1]
            case "double":
                lines.insert(at, lines[at])
            case "swap":
                lines[at], lines[-1] = lines[-1], lines[at]
            case _:
                place = draw(st.sampled_from(list(places_in(lines[at]))))
                lines[at] = changed(lines[at], place, draw(st.one_of(like(lines[at], place), ODD)))
    return "\n".join(map(json.dumps, [*lines, {"end": len(lines) - 1}])) + "\n"


@st.composite
def mutated_bytes(draw, contract):
    """A trace with bytes changed, put in or left out anywhere."""
    data = bytearray(draw(st.sampled_from(SAVED[contract])).encode())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


@pytest.mark.parametrize("contract", MODELS)
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_mutated_trace_is_played_or_refused(contract, tmp_path, data):
    path = tmp_path / "a.jsonl"
    content = data.draw(st.one_of(mutated_lines(contract), mutated_lines(contract), mutated_bytes(contract)))
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused = ""
    try:
        trace = load_trace(path)
    except UsageError as error:
        refused = str(error)
    if refused:
        assert str(path) in refused
        assert "\n" not in refused
        return
    factory = resolve(trace.contract, "reference").factory
    with contextlib.suppress(Unplayable):
        played = watched(play_ops, model_of(trace.contract), factory, trace.scope, trace.ops)
        assert isinstance(played, Replayed)
