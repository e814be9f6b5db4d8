"""LMDeploy's windows and states under kv_manager with groups: what is planted into its own code is found."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from driving import walk
from watched import watched

from kvlockstep.core.trace import load_trace
from kvlockstep.drivers.episode import missed_goals, not_evaluated, play_ops
from kvlockstep.impl.engines.cut import cut
from kvlockstep.models.kv_manager import KVManagerModel

REASON = "lmdeploy is not on this machine: see --engine-path"
windows = pytest.importorskip("kvlockstep.impl.engines.lmdeploy.windows", reason=REASON, exc_type=ImportError)
states = pytest.importorskip("kvlockstep.impl.engines.lmdeploy.states", reason=REASON, exc_type=ImportError)
engine = pytest.importorskip("kvlockstep.impl.engines.lmdeploy.manager", reason=REASON, exc_type=ImportError)

FOLDER = Path(windows.__file__).parent


@pytest.mark.parametrize(
    "make", [windows.make_window, windows.make_window_wide, states.make_state, states.make_state_borrowed]
)
def test_what_holds_meets_every_goal(make: Any) -> None:
    outcome = walk(KVManagerModel, make, 6_000, seed=0)
    assert outcome.failure is None, outcome.failure
    assert not missed_goals(KVManagerModel, outcome.reach, outcome.unreachable)
    assert not not_evaluated(KVManagerModel, outcome.evaluated, outcome.not_checked)


def reaches_further(blocks: int, block_size: int) -> Any:
    """Declares one position more than the engine keeps."""
    made = windows.make_window(blocks, block_size)
    made.groups = (made.groups[0]._replace(reach=made.groups[0].reach + 1),)
    return made


def slides_too_far(blocks: int, block_size: int) -> Any:
    """The engine drops blocks as if its window were a token shorter."""
    made = windows.make_window(blocks, block_size)
    made._blocks.window_size -= 1
    return made


def restores_nothing(blocks: int, block_size: int) -> Any:
    """A hit is not copied into the slot and the block of its request."""
    made = states.make_state(blocks, block_size)
    made._plans.restores = lambda seqs: []
    return made


def saves_no_state(blocks: int, block_size: int) -> Any:
    """A checkpoint is published that was never copied."""
    made = states.make_state(blocks, block_size)
    saves = made._plans.saves
    made._plans.saves = lambda seq, step: [copy for copy in saves(seq, step) if copy[0] != states.STATES]
    return made


def saves_no_tail(blocks: int, block_size: int) -> Any:
    """The KV behind the last full block of a checkpoint is not frozen."""
    made = states.make_state(blocks, block_size)
    saves = made._plans.saves
    made._plans.saves = lambda seq, step: [copy for copy in saves(seq, step) if copy[0] == states.STATES]
    return made


def pins_nothing(blocks: int, block_size: int) -> Any:
    """A checkpoint may be evicted between the hit and its copy."""
    made = states.make_state(blocks, block_size)
    made._checkpoints.is_pinned = lambda node: False
    made._checkpoints._is_evictable_checkpoint = lambda node: (
        node.state_checkpoint is not None and node.state_checkpoint.published
    )
    return made


def shares_what_it_restores(blocks: int, block_size: int) -> Any:
    """A block that a hit is copied into is given to the trie before the forward."""
    made = states.make_state(blocks, block_size)
    match = made._trie.match

    def match_and_share(seq: Any) -> None:
        match(seq)
        seq.prefix_cache.recompute_overlap.clear_fresh_block_range()

    made._trie.match = match_and_share
    return made


def keeps_a_state(blocks: int, block_size: int) -> Any:
    """A request that has ended keeps its slot."""
    made = states.make_state(blocks, block_size)
    made._states.free = lambda seq: None
    return made


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (reaches_further, "coverage"),
        (slides_too_far, "coverage"),
        (restores_nothing, "state_soundness"),
        (saves_no_state, "state_soundness"),
        (saves_no_tail, "prefix_soundness"),
        (pins_nothing, "error_contract"),
        (shares_what_it_restores, "error_contract"),
        (keeps_a_state, "leak_freedom"),
    ],
)
def test_a_planted_fault_is_found(make: Any, law: str) -> None:
    outcome = walk(KVManagerModel, make, 4_000, seed=0)
    assert outcome.failure is not None
    assert outcome.failure.law == law


@pytest.mark.parametrize(
    ("name", "mended"),
    [
        ("lmdeploy-preempted-state", states.make_state),
        ("lmdeploy-decoded-state-ahead", states.make_state),
        ("lmdeploy-window-over-dropped", windows.make_window),
    ],
)
def test_a_known_divergence_is_gone_where_it_is_mended(name: str, mended: Any) -> None:
    (path,) = FOLDER.glob(f"{name}.jsonl")
    trace = load_trace(path)
    assert trace.law == played(resolve_name(trace.target), trace).failure.law
    assert played(mended, trace).failure is None


def played(factory: Any, trace: Any) -> Any:
    return watched(lambda watchdog: play_ops(KVManagerModel, factory, trace.scope, trace.ops, watchdog))


def test_a_preempted_request_comes_back_with_a_state_that_is_a_token_ahead_in_the_engines_own_scheduler() -> None:
    """Two prompts in five blocks, without prefix caching and with defaults else; no adapter stands between.

    As in the engine's loop, a step is given its blocks before the output of the step before is taken in.
    """
    limits = engine.config.SchedulerConfig(2, engine.UNLIMITED)
    cache = engine.config.CacheConfig(2, 64, 0, 5, states_shapes=[((1,), None)], num_state_caches=4)
    meta = engine.messages.SequenceMeta(64, strategy=engine.strategy.ARSequenceStrategy())
    scheduler, ahead = engine.paging.Scheduler(limits, cache, meta), limits.prefill_interval
    for number in range(2):
        scheduler.add_session(number).add_sequence(np.full(60, number))
    behind: Counter[int] = Counter()
    first, second = running = scheduler.schedule(is_prefill=True, prealloc_size=ahead).running
    while len(running) == 2:
        scheduler.activate_seqs(running)
        # The forward: each state is now behind so many tokens.
        for seq in running:
            behind[seq.logical_state] += 1 if behind[seq.logical_state] else seq.num_token_ids
        granted = scheduler.schedule_running(running, num_required_tokens=1, prealloc_size=ahead)
        for seq in running:
            if seq.status == engine.messages.MessageStatus.RUNNING:
                seq.update_token_ids(np.array([0]), mode=engine.messages.UpdateTokenMode.DECODE)
        running = [seq for seq, has_room in zip(running, granted, strict=True) if has_room]
    assert running == [second]
    scheduler.end_session(second.session_id)
    assert scheduler.schedule(is_prefill=True, prealloc_size=ahead).running == [first]
    assert (first.num_history_ids, first.num_token_ids) == (127, 1)
    assert behind[first.logical_state] == 128


def test_the_engines_loop_prefetches_before_it_takes_in_an_output() -> None:
    """What the decodes of `decoded_states` count on, and the test above."""
    loop = cut(engine.ENGINE, "lmdeploy.pytorch.engine.engine_loop", ("EngineLoop._main_loop_get_outputs",), {})
    calls: list[str] = []

    def noted(name: str, answer: Any = None) -> Any:
        return lambda *_args, **_named: (calls.append(name), answer)[1]

    async def prefetch() -> tuple[None, None]:
        calls.append("prefetch")
        return None, None

    async def output() -> None:
        calls.append("output")

    running = SimpleNamespace(
        inputs_maker=SimpleNamespace(update_running_seqs=noted("update")),
        executor=SimpleNamespace(get_output_async=output),
        _publish_forward_checkpoints=noted("publish"),
        _prefetch_next_inputs=prefetch,
        _release_forward_save_pins=noted("unpin"),
        _finish_forward_output=noted("finish"),
    )
    asyncio.run(loop._main_loop_get_outputs(running, [], {"inputs": None, "delta": None, "cache_inputs": None}))
    assert calls == ["update", "publish", "prefetch", "output", "unpin", "finish"]
