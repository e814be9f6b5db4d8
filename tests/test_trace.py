"""Traces survive the way to a file and back, and a damaged file says what is wrong with it."""

from __future__ import annotations

import errno
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlockstep.errors import UsageError
from kvlockstep.models.kv_scope import KVScope
from kvlockstep.models.op import Op
from kvlockstep.trace import Trace, load_trace, save_trace

ops = st.builds(
    lambda name, n, tokens: Op(name, request=f"r{n}", tokens=tokens, extra_key=None, n=n),
    st.sampled_from(["admit", "decode", "finish"]),
    st.integers(0, 9),
    st.lists(st.integers(0, 2**31 - 1), max_size=5),
)
traces = st.builds(
    lambda ops, seed, message: Trace(
        "kv_manager",
        KVScope(3, 2, 2, 4, tokens=(1, 2), keys=(None, 7)),
        tuple(ops),
        tuple("cached 2" for _ in ops),
        target="mine:make",
        law="accounting",
        message=message,
        details=("a", "b"),
        driver="random",
        seed=seed,
        original=len(ops) + 3,
    ),
    st.lists(ops, max_size=6),
    st.one_of(st.none(), st.integers(0, 99)),
    st.text(max_size=20),
)


@given(trace=traces)
def test_round_trip(trace, tmp_path_factory):
    path = save_trace(trace, tmp_path_factory.mktemp("traces"))
    assert load_trace(path) == trace


@pytest.fixture
def saved(tmp_path):
    trace = Trace("kv_manager", KVScope(3, 2, 2, 4), (Op("forward", abort=[]), Op("reset")), law="accounting")
    return save_trace(trace, tmp_path)


def test_truncated(saved):
    lines = saved.read_text().splitlines()
    saved.write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(UsageError, match="truncated"):
        load_trace(saved)


def test_cut_inside_a_line(saved):
    saved.write_text(saved.read_text()[:-5])
    with pytest.raises(UsageError, match=r":4: not JSON .*truncated"):
        load_trace(saved)


def test_another_version(saved):
    header, *rest = saved.read_text().splitlines()
    saved.write_text("\n".join([json.dumps({**json.loads(header), "kvlockstep_trace": 99}), *rest]) + "\n")
    with pytest.raises(UsageError, match="another version"):
        load_trace(saved)


def test_another_contract(saved):
    with pytest.raises(UsageError, match="for contract 'kv_manager', not 'slot_pool'"):
        load_trace(saved, "slot_pool")


def test_not_a_trace(tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text('{"timestamp": 0}\n')
    with pytest.raises(UsageError, match="--format mooncake"):
        load_trace(path)


@pytest.mark.parametrize(
    "line",
    ['{"op": "reset", "args": null}', '{"op": "reset"}', '["reset"]', "7"],
    ids=["null", "none", "list", "number"],
)
def test_an_operation_that_is_none(saved, line):
    header, first, _, end = saved.read_text().splitlines()
    saved.write_text("\n".join([header, first, line, end]) + "\n")
    with pytest.raises(UsageError, match="malformed trace"):
        load_trace(saved)


def test_a_full_disk_leaves_what_was_there(saved, monkeypatch):
    def full(handle, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = saved.read_text()
    monkeypatch.setattr("kvlockstep.files.os.write", full)
    with pytest.raises(UsageError, match="No space left on device"):
        save_trace(load_trace(saved).but(details=("other",)), saved.parent)
    assert list(saved.parent.iterdir()) == [saved]
    assert saved.read_text() == before


def test_nothing_is_half_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        save_trace(Trace("kv_manager", KVScope(3, 2, 2, 4), ()), blocked / "sub")
    assert list(tmp_path.iterdir()) == [blocked]
