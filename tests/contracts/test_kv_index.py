"""kv_index: the reference, the variants and our own index hold, each law catches faults, and the judge is fair."""

from __future__ import annotations

import re

import pytest
from driving import FEW, explore
from places import DOCS
from watched import watched

from kvlockstep.bench.kv_index import DictOfDicts, Load, bench_kv_index, workload
from kvlockstep.drivers.episode import run_ops
from kvlockstep.drivers.hypothesis_machine import machine_for
from kvlockstep.impl.faulty import faults_of
from kvlockstep.impl.kv_index import CountingKVIndex, KVIndex
from kvlockstep.impl.variants.kv_index import VARIANTS, DropsOrphans, KnowsNoNumbers, WaitsBehindAGap
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import NotEnabled, Op
from kvlockstep.models.kv_index import KVIndexModel
from kvlockstep.models.kv_index.scope import SMALL, KVIndexScope
from kvlockstep.properties.kv_index.heard import Heard, Message
from kvlockstep.properties.kv_index.laws import Answer, gap_once, index_exact
from kvlockstep.reference.kv_index import KVIndex as Reference
from kvlockstep.reference.kv_index.contract import IndexTraits
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored

GOOD = {"reference": Reference, "chain": KVIndex, "counting": CountingKVIndex, **VARIANTS}
ONE = KVIndexScope(1, 1, 3, tokens=(1, 2), keys=(None, 7))
TWO = KVIndexScope(1, 2, 3)
PAGE = DOCS / "kv_index.md"


def model(factory=Reference, scope=ONE):
    return KVIndexModel(scope, factory)


def play(model, *ops):
    return [str(model.step(op)) for op in ops]


def store(tokens, first=0, worker=0, **more):
    return Op("store", worker=worker, tokens=tokens, first=first, **more)


def evict(tokens, n=1, worker=0, **more):
    return Op("evict", worker=worker, tokens=tokens, n=n, **more)


def lookup(tokens, extra_key=None):
    return Op("lookup", tokens=tokens, extra_key=extra_key)


@pytest.mark.parametrize("factory", [Reference, KVIndex], ids=["reference", "chain"])
@pytest.mark.parametrize("scope", SMALL[:-1], ids=str)
def test_small_scopes_are_exhausted(factory, scope):
    outcome = watched(explore, KVIndexModel, factory, scope)
    assert outcome.failure is None
    assert outcome.exhausted


class TestKVIndexMachine(machine_for(KVIndexModel, KVIndex).TestCase):
    settings = FEW


def test_every_law_names_a_fault():
    assert {law.id for law in KVIndexModel.laws} == {fault.law for fault in faults_of("kv_index")}


def test_a_sequence_is_known_up_to_the_first_block_that_is_missing():
    answers = play(model(), store([1, 1, 1]), lookup([1, 1, 1]), evict([1, 1]), lookup([1, 1, 1]), lookup([2]))
    assert answers == ["event 0", "worker 0: 3", "event 1", "worker 0: 1", "nobody"]


def test_an_orphan_is_found_when_its_parent_is_back():
    orphan = store([1, 2]), evict([1])
    assert play(model(), *orphan, lookup([1, 2]), store([1]), lookup([1, 2]))[2::2] == ["nobody", "worker 0: 2"]
    assert play(model(DropsOrphans), *orphan, store([1]), lookup([1, 2]))[-1] == "worker 0: 1"


def test_a_gap_is_told_and_ended_by_a_resynchronisation():
    played = model()
    assert play(played, store([1]), store([2], lost=True), store([1, 1], 1))[-1] == "event 2, behind a gap"
    assert played.judge.heard[0].gap
    assert play(played, Op("resync", worker=0), lookup([2])) == ["behind event 2", "worker 0: 1"]
    assert not played.judge.heard[0].gap


def test_a_lost_event_that_arrives_before_its_successor_is_not_lost():
    played = model()
    play(played, store([1]), store([2], lost=True))
    assert play(played, Op("repeat", worker=0, number=1), lookup([2])) == ["event 1", "worker 0: 1"]
    assert play(played, Op("repeat", worker=0, number=0)) == ["event 0, old"]


def test_an_index_without_numbers_gets_no_old_events_and_no_snapshots():
    played = model(KnowsNoNumbers)
    play(played, store([1]))
    for op in (Op("repeat", worker=0, number=0), Op("resync", worker=0), Op("reload"), store([1], extra_key=7)):
        with pytest.raises(NotEnabled):
            played.step(op)


def test_a_worker_that_comes_back_has_keys_and_numbers_of_its_own():
    played = model(scope=TWO)
    play(played, store([1]), store([2], worker=1), Op("leave", worker=0), store([2, 1]))
    assert play(played, lookup([2, 1]), lookup([1])) == ["worker 0: 2, worker 1: 1", "nobody"]
    assert played.judge.goals_met["key_collision"]
    assert played.judge.goals_met["came_back"]


def test_a_router_starts_again_from_its_snapshot():
    played = model()
    play(played, store([1, 2, 1], extra_key=7), evict([1, 2], extra_key=7))
    assert play(played, Op("reload"), store([1, 2], 1, extra_key=7), lookup([1, 2, 1], 7))[-1] == "worker 0: 3"


class Strange(Reference):
    """Answers for somebody who never was there."""

    def known(self, tokens, extra_key):
        return {**super().known(tokens, extra_key), "stranger": 1}


class NoMapping(Reference):
    def known(self, tokens, extra_key):
        return [(0, 1)]


class OddSnapshot(Reference):
    def snapshot(self):
        return [(0, "first", ())]


@pytest.mark.parametrize(
    ("factory", "ops", "law", "message"),
    [
        (Strange, [store([1])], "worker_isolated", "worker stranger is said to have 1 block"),
        (NoMapping, [store([1])], "error_contract", "known returned [(0, 1)], not {worker: blocks}"),
        (OddSnapshot, [Op("reload")], "error_contract", "snapshot returned [(0, 'first', ())], not (worker, number"),
    ],
)
def test_a_wrong_answer_is_a_finding(factory, ops, law, message):
    with pytest.raises(Divergence, match=re.escape(message)) as raised:
        play(model(factory), *ops)
    assert raised.value.law == law


def stored(*tokens, first=0, key=None):
    prefixes = tuple((key, tokens[: n + 1]) for n in range(first, len(tokens)))
    return Message(BlockStored((), None, (), 1), prefixes)


def removed(*tokens):
    return Message(BlockRemoved(()), ((None, tokens),))


def test_the_bounds_are_one_without_a_gap_and_apart_behind_it():
    heard = Heard(1, IndexTraits())
    heard.arrives(0, stored(1, 2))
    assert heard.bounds([1, 2, 3], None) == (2, 2)
    heard.arrives(2, removed(1, 2))
    assert heard.bounds([1, 2], None) == (0, 1)
    heard.arrives(3, stored(5))
    assert heard.bounds([5], None) == (0, 1)
    heard.arrives(4, Message(AllBlocksCleared()))
    heard.arrives(5, stored(5))
    assert heard.bounds([5], None) == (1, 1)
    assert heard.bounds([1], None) == (0, 0)


def test_a_block_behind_a_parent_that_is_not_stored_may_be_left_out():
    heard = Heard(1, IndexTraits())
    heard.arrives(0, stored(1))
    heard.arrives(1, removed(1))
    heard.arrives(2, stored(1, 2, first=1))
    heard.arrives(3, stored(1))
    assert heard.bounds([1, 2], None) == (1, 2)
    heard.arrives(4, stored(1, 2, first=1))
    assert heard.bounds([1, 2], None) == (2, 2)


def test_copies_are_counted_by_trait():
    for listener, bounds in (("set", (0, 0)), ("counting", (1, 1))):
        heard = Heard(1, IndexTraits(event_listener=listener))
        for number, message in enumerate((stored(1), stored(1), removed(1))):
            heard.arrives(number, message)
        assert heard.bounds([1], None) == bounds


def test_an_index_that_waits_may_ignore_removals():
    heard = Heard(1, IndexTraits(waits_for_resync=True))
    heard.arrives(0, stored(1))
    heard.arrives(2, removed(1))
    assert heard.bounds([1], None) == (0, 1)
    assert issubclass(WaitsBehindAGap, Reference)


def test_a_law_says_what_is_wrong():
    assert index_exact(Answer(0, (1, 2), 7, 2, 1, 1)) == (
        "worker 0 is said to have 2 blocks of [1, 2] under extra key 7, not 1"
    )
    assert index_exact(Answer(0, (1, 2), None, 0, 1, 2)) == "worker 0 is said to have 0 blocks of [1, 2], not 1 to 2"
    assert gap_once(0, 3, 1, False) == "event 3 of worker 0 behind event 1 is a gap and was not told"
    assert gap_once(0, 2, 1, None) is None


def test_the_picture_shows_what_is_said_and_what_is_cached():
    played = model()
    play(played, store([1, 2]))
    said, cached = played.picture().tables
    assert said.rows == (("1 2", "None", "0", "2", "2"),)
    assert cached.rows == (("0", "1", "None", "1"), ("0", "1 2", "None", "1"))


@pytest.mark.parametrize("make", [KVIndex, CountingKVIndex])
def test_our_index_gives_back_what_nobody_holds(make):
    index, blocks = make(2), tuple(range(6))
    index.apply("a", 0, BlockStored((1, 2, 3), None, blocks, 2, 5))
    index.apply("b", 0, BlockStored((9,), None, blocks[:2], 2, 5))
    assert len(index) == 3
    index.apply("a", 1, BlockRemoved((3, 2, 1)))
    assert len(index) == 1
    assert index.known(list(blocks), 5) == {"b": 1}
    index.remove("b")
    assert len(index) == 0
    # What was given back is used again, in the order of a run.
    index.apply("a", 2, BlockStored((1, 2, 3), None, blocks[::-1], 2))
    assert index.known(list(blocks[::-1]), None) == {"a": 3}
    assert len(index._chains.holders) == 4


def test_our_index_finds_where_a_prompt_leaves_a_run():
    index = KVIndex(1)
    index.apply(0, 0, BlockStored(tuple(range(100)), None, tuple(range(100)), 1))
    for same in range(100):
        prompt = [*range(same), *[-1] * (100 - same)]
        assert index.known(prompt, None).get(0, 0) == same


def test_the_indexes_of_the_bench_agree():
    load = Load(blocks=400, workers=3, length=16, shared=4, systems=3, batch=4, lookups=5)
    prompts, events = workload(load)
    indexes = KVIndex(16), DictOfDicts(16), Reference(16)
    for number, (worker, event) in enumerate(events):
        for index in indexes:
            index.apply(worker, number, event)
    for prompt in prompts:
        ours, floor, right = (index.known(prompt, None) for index in indexes)
        assert ours == floor == {worker: blocks for worker, blocks in right.items() if blocks}
    rows = bench_kv_index(KVIndex, KVIndex, load)
    assert len(rows) == 5
    assert all(row.ours > 0 and row.floor > 0 and row.peers["Dynamo"] > 0 for row in rows)


def test_the_adapter_of_the_page_holds(run_cli, tmp_path, monkeypatch):
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 40
    (tmp_path / "my_index.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    code, out, _ = run_cli("check", "kv_index", "--target", "my_index.py:MyIndex", "--driver", "random")
    assert code == 0
    assert "HOLDS" in out


def test_new_target_writes_an_index_to_fill_in(run_cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, _ = run_cli("new-target", "mine", "--contract", "kv_index")
    text = (tmp_path / "mine.py").read_text()
    assert code == 0
    assert "def known(self, tokens: list[int], extra_key: int | None)" in text
    assert "can_snapshot" in text


def play_recording(*ops, block_size=1):
    """Plays events of a recording against the reference and `chain`, under every law."""
    for name in ("reference", "chain"):
        trace = watched(run_ops, KVIndexModel, GOOD[name], KVIndexScope(block_size, 1, 1), list(ops))
        assert trace is None, trace


def store_op(number, keys, parent, tokens, worker=0):
    return Op("stored", worker=worker, number=number, keys=keys, parent=parent, tokens=tokens, extra_key=None)


def test_a_recording_may_begin_behind_parents_that_nobody_announced():
    """Once the parent is announced, an index may find what stands behind it, and need not."""
    question = Op("lookup", tokens=[1, 2, 3], extra_key=None)
    orphan, parent = store_op(0, [7, 8], 5, [2, 3]), store_op(1, [5], None, [1])
    play_recording(orphan, question, parent, question, Op("removed", worker=0, number=2, keys=[7, 99]), question)


def test_workers_of_a_recording_are_known_from_their_first_event_on():
    play_recording(
        store_op(3, [1], None, [4]), store_op(0, [1], None, [5], worker=1), Op("lookup", tokens=[5], extra_key=None)
    )
