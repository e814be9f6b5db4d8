"""A recorded run replays: on the manager that it was recorded on, and on another."""

from __future__ import annotations

import pytest
from watched import watched

import kvlockstep
from kvlockstep.bench.record import Load, bench_record
from kvlockstep.bench.record import serve as serve_load
from kvlockstep.core.trace import load_trace
from kvlockstep.drivers.episode import Outcome, run_ops
from kvlockstep.drivers.random_walk import run_episode
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.reference.kv_index import KVIndex
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored
from kvlockstep.targets import resolve


def serve(manager):
    """A scheduler as a user has it: a prompt in two chunks, a decode with drafts, an abort in flight."""
    assert manager.admit("alice", [1, 2, 3, 4], None, 3) == 0
    manager.launch()
    manager.commit("alice", 3)
    assert manager.reserve("alice", 1)
    assert manager.admit("bob", [1, 2, 9], None, 3) == 2
    manager.launch()
    manager.commit("bob", 1)
    manager.commit("alice", 1)
    manager.append("alice", 5)
    assert manager.reserve("alice", 3)
    manager.launch()
    manager.append("alice", 6)
    manager.commit("alice", 2)
    manager.append("bob", 7)
    assert manager.reserve("bob", 1)
    manager.launch()
    manager.abort("bob")
    manager.finish("alice")


def test_a_schedule_becomes_operations(tmp_path):
    path = tmp_path / "run.jsonl"
    with kvlockstep.record(KVManager(8, 2), path) as manager:
        serve(manager)
        assert manager.avail() == 16, "what only asks is passed on"
    trace = load_trace(path, "kv_manager")
    assert [str(op) for op in trace.ops] == [
        "admit request=r0 tokens=[1,2,3,4] n=3",
        "forward",
        "decode request=r0 token=4",
        "admit request=r1 tokens=[1,2,9] n=3",
        "forward reverse=True",
        "decode request=r0 token=5 drafts=[6,0]",
        "forward accept={'r0': 1}",
        "decode request=r1 token=7",
        "forward abort=['r1']",
        "finish request=r0",
    ]
    assert trace.answers[0] == "cached 0"
    assert trace.answers[3] == "cached 2"


def replayed(trace, factory=KVManager):
    """The failing trace, None if every law holds."""
    return watched(run_ops, KVManagerModel, factory, trace.scope, trace.ops)


@pytest.mark.parametrize("name", ["reference", "blocks", "slots"])
def test_what_was_recorded_replays_under_the_oracle(tmp_path, name):
    path = tmp_path / "run.jsonl"
    with kvlockstep.record(KVManager(8, 2), path) as manager:
        serve(manager)
    trace, faulty = load_trace(path), resolve("kv_manager", "fault:kv-finish-by-tokens").factory
    assert replayed(trace, resolve("kv_manager", name).factory) is None
    assert replayed(trace, faulty) is not None


def test_the_load_of_the_bench_is_what_the_recording_says(tmp_path):
    path, load = tmp_path / "run.jsonl", Load(requests=9, running=3, prompt=11, shared=8, output=5)
    with kvlockstep.record(KVManager(24, 2), path) as manager:
        operations = serve_load(manager, load)
    trace = load_trace(path)
    assert len(trace.ops) == operations
    assert replayed(trace) is None


def test_a_run_of_vllm_replays_under_the_oracle(tmp_path):
    reason = "vLLM is not on this machine: see --engine-path"
    vllm = pytest.importorskip("kvlockstep.impl.engines.vllm.manager", reason=reason, exc_type=ImportError)
    path, load = tmp_path / "run.jsonl", Load(requests=40, running=6, prompt=23, shared=12, output=9)
    with kvlockstep.record(vllm.make(96, 4), path) as manager:
        serve_load(manager, load)
    trace = load_trace(path)
    assert sum(answer == "cached 12" for answer in trace.answers) == 39
    for factory in (vllm.make, KVManager, resolve("kv_manager", "blocks").factory):
        assert replayed(trace, factory) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm.vllm.pool.BlockPool, "touch", lambda *_: None)
        wrong = replayed(trace, vllm.make)
    assert wrong is not None, "what is recorded leads to the defect, if there is one"


def test_recording_costs_a_small_part_of_a_step(tmp_path):
    (row,) = bench_record({"blocks": resolve("kv_manager", "blocks").factory}, rounds=3)
    assert row.row == "blocks, recorded"
    assert 1.0 < row.ratio < 10.0, "some microseconds beside those of the manager"


def test_random_episodes_are_recorded_operation_by_operation(tmp_path):
    class Noted(KVManagerModel):
        def step(self, op):
            answer = super().step(op)
            ops.append(op)
            return answer

    for episode in range(60):
        ops, path = [], tmp_path / f"{episode}.jsonl"
        recorders = []

        def recorded(blocks, block_size, path=path, recorders=recorders):
            recorders.append(kvlockstep.record(KVManager(blocks, block_size), path))
            return recorders[-1]

        assert watched(run_episode, Noted, recorded, 3, episode, outcome=Outcome("random")) is None
        recorders[-1].close()
        trace = load_trace(path)
        last = max((i for i, op in enumerate(ops) if op.name == "forward"), default=-1)
        assert kinds(trace.ops)[: last + 1] == kinds(ops)[: last + 1]
        again = replayed(trace)
        assert again is None, again
        assert len(again_answers(trace)) == len(trace.ops)


def kinds(ops):
    """A last chunk of one token and a decode of one that waits are the same calls."""
    return [op.name.replace("chunk", "decode") for op in ops]


def again_answers(trace):
    """The answers of a second run, equal to the recorded ones where an operation was answered at all."""
    model = KVManagerModel(trace.scope, KVManager)
    answers = [str(model.step(op)) for op in trace.ops]
    assert [
        a for a, b in zip(answers, trace.answers, strict=True) if b.startswith(("cached", "refused")) and a != b
    ] == []
    return answers


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(kvlockstep.UsageError, match="record to another path"):
        kvlockstep.record(KVManager(2, 1), tmp_path / "none" / "run.jsonl")


def route(index):
    """A router as a user has it: two workers with keys of their own, a gap, a clear, a resynchronisation."""
    index.apply("east", 0, BlockStored((b"a", b"b"), None, (1, 2, 3, 4), 2, None))
    index.apply("west", 7, AllBlocksCleared())
    index.apply("west", 8, BlockStored((b"b",), None, (1, 2), 2, None))
    assert dict(index.known([1, 2, 3, 4, 5], None)) == {"east": 2, "west": 1}
    index.apply("east", 1, BlockRemoved((b"b", b"never stored")))
    index.apply("west", 10, BlockStored((b"d",), b"lost", (5, 6), 2, None))
    assert index.known([1, 2, 3, 4], None)["east"] == 1
    index.resync("west", 10, [BlockStored((b"b", b"lost"), None, (1, 2, 3, 4), 2, None), BlockRemoved((b"b",))])
    index.remove("east")
    assert not any(index.known([1, 2], None).values())


def test_what_a_router_is_told_becomes_operations(tmp_path):
    path = tmp_path / "run.jsonl"
    with kvlockstep.record(KVIndex(2), path) as index:
        route(index)
    trace = load_trace(path, "kv_index")
    assert trace.scope.block_size == 2
    assert [str(op) for op in trace.ops] == [
        "stored worker=0 number=0 keys=[0,1] tokens=[1,2,3,4]",
        "cleared worker=1 number=7",
        "stored worker=1 number=8 keys=[2] tokens=[1,2]",
        "lookup tokens=[1,2,3,4,5]",
        "removed worker=0 number=1 keys=[1,3]",
        "stored worker=1 number=10 keys=[5] parent=4 tokens=[5,6]",
        "lookup tokens=[1,2,3,4]",
        "resynced worker=1 number=10 stored=[((2,4),None,(1,2,3,4),None)] removed=[2]",
        "leave worker=0",
        "lookup tokens=[1,2]",
    ]
    assert trace.answers[3] == "worker 0: 2, worker 1: 1"


@pytest.mark.parametrize("name", ["reference", "chain"])
def test_what_a_router_was_told_replays_under_the_oracle(tmp_path, run_cli, name):
    with kvlockstep.record(KVIndex(2), tmp_path / "run.jsonl") as index:
        route(index)
    code, out, _ = run_cli("replay", "run.jsonl", "--target", name)
    assert (code, "HOLDS" in out) == (0, True)
    code, out, _ = run_cli("replay", "run.jsonl", "--target", "fault:index-remove-ignored")
    assert (code, "clear_heard" in out) == (1, True)
