"""Traces survive the way to a file and back, and a damaged file says what is wrong with it."""

from __future__ import annotations

import errno
import json
import os
import re
import types
from random import Random
from typing import NotRequired, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlockstep import check
from kvlockstep.core.errors import UsageError
from kvlockstep.core.trace import Trace, load_trace, parse_trace, save_trace, trace_text
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.models.core.op import NotEnabled, Op
from kvlockstep.models.core.operations import MOST_MADE, Size
from kvlockstep.models.core.trace_schema import MOST
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.show.junit import NOT_IN_XML
from kvlockstep.targets import resolve


def values(kind):
    """Values of the type of an argument, as they stand in a trace that was read."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is NotRequired:
        return values(args[0])
    if origin in (Union, types.UnionType):
        return st.one_of(map(values, args))
    if origin is list:
        return st.lists(values(args[0]), max_size=4)
    if origin is tuple:
        return st.lists(values(args[0]), max_size=3).map(tuple) if args[1:] == (...,) else st.tuples(*map(values, args))
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=2)
    plain = {
        int: st.integers(-MOST, MOST),
        Size: st.integers(-MOST_MADE, MOST_MADE),
        str: st.sampled_from(["r0", "r1", "größe"]),
    }
    return plain.get(kind, st.none() if kind is types.NoneType else st.booleans())


@st.composite
def traces(draw):
    contract = draw(st.sampled_from(sorted(MODELS)))
    operations = MODELS[contract].operations
    names = draw(st.lists(st.sampled_from(sorted(operations)), max_size=6))
    ops = [Op(n, **{name: draw(values(kind)) for name, kind in operations[n].items()}) for n in names]
    return Trace(
        contract,
        draw(st.sampled_from(model_of(contract).scopes)),
        tuple(ops),
        tuple(draw(st.text(max_size=5)) for _ in ops),
        target="mine:make",
        law="accounting",
        message=draw(st.text(max_size=20)),
        details=("a", "b"),
        driver="random",
        seed=draw(st.one_of(st.none(), st.integers(0, 99))),
        original=len(ops) + 3,
    )


@given(trace=traces())
def test_round_trip(trace, tmp_path_factory):
    path = save_trace(trace, tmp_path_factory.mktemp("traces"))
    assert load_trace(path) == trace


@pytest.fixture
def saved(tmp_path):
    trace = Trace("kv_manager", KVScope(3, 2, 2, 4), (Op("finish", request="r0"), Op("reset")), law="accounting")
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
    monkeypatch.setattr("kvlockstep.core.files.os.write", full)
    with pytest.raises(UsageError, match="No space left on device"):
        save_trace(load_trace(saved).but(details=("other",)), saved.parent)
    assert list(saved.parent.iterdir()) == [saved]
    assert saved.read_text() == before


@pytest.fixture
def full_disk(monkeypatch):
    def full(*_args, **_named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("kvlockstep.core.trace.write_whole", full)


@pytest.mark.usefixtures("full_disk")
class TestAFullDiskDoesNotTakeTheFinding:
    @pytest.mark.parametrize(
        "command",
        [("check", "slot_pool"), ("explore", "slot_pool"), ("check", "slot_pool", "--jobs", "2", "--target", "pool")],
    )
    def test_its_page_comes_before_the_complaint(self, run_cli, command):
        code, _, err = run_cli(*command, "--target", "fault:pool-occupy-toggles")
        assert code == 2
        page, complaint = err.index("VIOLATED no_aliasing"), err.index("kvlockstep: cannot write trace")
        assert err.index("law no_aliasing: No slot is given to two holders.") in range(page, complaint)
        assert "No space left on device" in err[complaint:]
        assert "replay: " not in err

    def test_from_python_it_is_in_the_error(self, tmp_path):
        with pytest.raises(UsageError, match=r"(?s)VIOLATED no_aliasing.*cannot write trace"):
            check(FAULTS["pool-occupy-toggles"].make, contract="slot_pool", directory=tmp_path)


def test_nothing_is_half_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        save_trace(Trace("kv_manager", KVScope(3, 2, 2, 4), ()), blocked / "sub")
    assert list(tmp_path.iterdir()) == [blocked]


@pytest.mark.parametrize("contract", MODELS)
def test_whatever_a_model_proposes_can_be_saved_and_read(contract):
    model_type, factory = model_of(contract), resolve(contract, "reference").factory
    for scope in dict.fromkeys((*model_type.scopes[:6], *model_type.small_scopes)):
        pick, ops = Random(0).choice, []
        model = model_type(scope, factory)
        for _ in range(60):
            proposals = []
            for command in model.commands:
                try:
                    proposals.append(model.propose(command, pick_of(pick)))
                    model.step(proposals[-1])
                except NotEnabled:
                    continue
            ops += proposals
        trace = Trace(contract, scope, tuple(ops), ("",) * len(ops))
        assert parse_trace(trace_text(trace), "a trace") == trace


def pick_of(choice):
    def pick(options):
        if not options:
            raise NotEnabled
        return choice(list(options))

    return pick


HEADER = {"kvlockstep_trace": 1, "contract": "kv_manager", "scope": {}}
SCOPE = KVScope(3, 2, 2, 4).to_json()
ADMIT = {"request": "r0", "tokens": [1], "extra_key": None, "n": 1}


@pytest.mark.parametrize(
    ("header", "lines", "message"),
    [
        ({}, ['{"op": "bogus", "args": {}}'], ":2: malformed trace: kv_manager has no operation 'bogus'"),
        ({}, ['{"op": "__init__", "args": {}}'], ":2: malformed trace: kv_manager has no operation '__init__'"),
        ({}, ['{"op": "reset", "args": {}}', '{"op": "finish", "args": {}}'], ":3: .* finish lacks the argument req"),
        ({}, ['{"op": "reset", "args": {"hard": true}}'], "reset has no argument 'hard'; it has none"),
        ({}, [{**ADMIT, "n": "one"}], ":2: malformed trace: n of admit is 'one', not a whole number"),
        ({}, [{**ADMIT, "n": True}], "n of admit is True, not a whole number"),
        ({}, [{**ADMIT, "n": 2**63}], "n of admit is 9223372036854775808, not a whole number"),
        ({}, [{**ADMIT, "tokens": [1, [2]]}], "tokens of admit is .* not a list, each a whole number"),
        ({}, [{**ADMIT, "request": "\x1b[2J"}], "request of admit is .* characters that do harm"),
        ({}, [{**ADMIT, "request": "\ud800"}], "request of admit is .* characters that do harm"),
        ({}, ['{"op": "reset", "args": {}, "answer": NaN}'], ":2: malformed trace: NaN is not a number of JSON"),
        ({}, ['{"op": "reset", "args": {"n": ' + "9" * 5000 + "}}"], ":2: malformed trace: .*digits"),
        ({}, ["[" * 100_000], ":2: malformed trace: lists are nested too deep"),
        ({"scope": {**SCOPE, "blocks": -5}}, [], ":1: malformed trace: blocks of the scope is -5; .* from 1 to"),
        ({"scope": {**SCOPE, "blocks": 2_000_000_000}}, [], "blocks of the scope is 2000000000; .* to 1,048,576"),
        ({"scope": {**SCOPE, "blocks": 2**20, "block_size": 64}}, [], "asks for 67,108,864 slots; at most 4,194,304"),
        ({"scope": {**SCOPE, "ask": "nobody"}}, [], "ask of the scope is 'nobody', not one of avail"),
        ({"scope": {**SCOPE, "keys": 7}}, [], "keys of the scope is 7, not a list"),
        ({"scope": {"blocks": 3}}, [], "the scope lacks block_size, live, max_tokens"),
        ({"scope": {**SCOPE, "pages": 3}}, [], "the scope has an unknown parameter 'pages'"),
        ({"contract": "kv_wonder"}, [], ":1: malformed trace: unknown contract 'kv_wonder'"),
        ({"contract": ["kv_manager"]}, [], ":1: malformed trace: unknown contract"),
        ({"seed": "0"}, [], ":1: malformed trace: seed of the header is '0', not a whole number or null"),
        ({"details": "none"}, [], "details of the header is 'none', not a list, each a text"),
        ({"mood": "good"}, [], "the header has an unknown value 'mood'"),
    ],
)
def test_a_malformed_trace_names_file_and_line(tmp_path, header, lines, message):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"op": "admit", "args": line}) if isinstance(line, dict) else line for line in lines]
    first = json.dumps({**HEADER, "scope": SCOPE, **header})
    path.write_text("\n".join([first, *lines, json.dumps({"end": len(lines)})]) + "\n")
    with pytest.raises(UsageError, match=message) as error:
        load_trace(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"\n", b"\x00", b"7\n", b"null\n"])
def test_what_is_no_trace_at_all(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=str(path)):
        load_trace(path)


def test_a_directory_is_no_trace(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read trace .*: Is a directory"):
        load_trace(tmp_path)


def finding(**changes):
    return Trace("kv_manager", KVScope(3, 2, 2, 4), (Op("reset"),), target="mine:A", law="accounting").but(**changes)


def test_the_same_finding_has_one_file(tmp_path):
    first = save_trace(finding(), tmp_path)
    assert first.name.startswith("kv_manager-accounting-mine-A-")
    assert save_trace(finding(message="again"), tmp_path) == first
    assert load_trace(first).message == "again"


@pytest.mark.parametrize(
    "changes", [{"target": "mine:B"}, {"target": "mine/A"}, {"law": "coverage"}, {"ops": (Op("reset"), Op("reset"))}]
)
def test_findings_are_told_apart_by_target_law_and_shape(tmp_path, changes):
    paths = {save_trace(finding(), tmp_path), save_trace(finding(**changes), tmp_path)}
    assert len(paths) == 2
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("there", [trace_text(finding(target="mine:B")), "mine, and no trace\n"])
def test_a_file_of_another_finding_is_never_overwritten(tmp_path, there):
    taken = tmp_path / finding().file_name
    taken.write_text(there)
    path = save_trace(finding(), tmp_path)
    assert taken.read_text() == there
    assert path.name == f"{taken.stem}-2.jsonl"
    assert save_trace(finding(message="again"), tmp_path) == path


@given(target=st.text(max_size=300), law=st.sampled_from(["", "accounting"]))
def test_every_target_makes_a_name_that_every_file_system_takes(target, law):
    name = finding(target=target, law=law).file_name
    assert re.fullmatch(r"kv_manager-(accounting|held)-[A-Za-z0-9_.-]+\.jsonl", name)
    assert len(name) < 120


@given(text=st.text(st.characters(codec=None), max_size=30))
def test_a_targets_words_are_safe_wherever_they_go(text):
    trace = finding(message=text, details=(text,), answers=(text,), target=text)
    for said in (trace.message, *trace.details, *trace.answers, trace.target):
        assert not NOT_IN_XML.search(said)
        assert not set(said) & {"\x1b", "\r", "\x00", "\x9b", "\u202e"}
        said.encode()
    assert parse_trace(trace_text(trace), "a trace") == trace
