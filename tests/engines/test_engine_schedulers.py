"""The schedulers of nano-vllm and mini-sglang, and vLLM's with drafts, under kv_scheduler."""

from __future__ import annotations

import importlib
import tomllib
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from driving import walk

from kvlockstep.core.trace import load_trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import run_ops
from kvlockstep.models.registry import model_of
from kvlockstep.targets import resolve

ENGINES = Path(importlib.import_module("kvlockstep.impl.engines").__path__[0])
MODEL = model_of("kv_scheduler")
NANO, MINI, VLLM = "nano_vllm", "mini_sglang", "vllm"
SGLANG = "sglang"


def adapter_of(engine: str) -> Any:
    reason = f"the engine of {engine} is not on this machine: see --engine-path"
    return pytest.importorskip(f"kvlockstep.impl.engines.{engine}.scheduler", reason=reason, exc_type=ImportError)


@pytest.mark.parametrize(
    ("engine", "make"),
    [
        (NANO, "make"),
        (MINI, "make_repaired"),
        (MINI, "make_normal_repaired"),
        (SGLANG, "make"),
        (SGLANG, "make_lpm"),
        (SGLANG, "make_overlap_priority"),
        (SGLANG, "make_overlap_mixed_repaired"),
        (VLLM, "make_ngram"),
        (VLLM, "make_eagle"),
        (VLLM, "make_priority_ngram"),
        (VLLM, "make_async_ngram"),
        (VLLM, "make_async_eagle"),
        (VLLM, "make_async_priority_ngram"),
    ],
)
def test_random_episodes_hold_every_law_and_reach_every_goal(engine: str, make: str) -> None:
    outcome = walk(MODEL, getattr(adapter_of(engine), make), 6_000)
    assert outcome.failure is None
    assert {goal.id for goal in MODEL.goals} - outcome.reach.keys() <= (outcome.unreachable or set())


@pytest.mark.parametrize("engine", ["nano-vllm", "mini-sglang", "sglang"])
def test_the_known_divergences_are_still_there(engine: str) -> None:
    adapter_of({"nano-vllm": NANO, "mini-sglang": MINI, "sglang": SGLANG}[engine])
    folder = ENGINES / engine.replace("-", "_")
    for known in tomllib.loads((folder / "known.toml").read_text())["divergence"]:
        if known["contract"] != "kv_scheduler":
            continue
        trace = load_trace(folder / known["trace"])
        with Watchdog(5.0).watching() as watchdog:
            factory = resolve(known["contract"], known["target"]).factory
            failure = run_ops(MODEL, factory, trace.scope, trace.ops, watchdog)
        assert failure is not None, known["id"]
        assert failure.law == known["law"]
        assert engine != "sglang" or failure.message.startswith(trace.message)
        if engine == "mini-sglang":
            with Watchdog(5.0).watching() as watchdog:
                repaired = adapter_of(MINI).make_repaired
                assert run_ops(MODEL, repaired, trace.scope, trace.ops, watchdog) is None, known["id"]


BUGS = {
    "make_early_end": "ending",
    "make_late_reply": "ending",
    "make_unmapped_duplicates": "eviction_safety content_equality prefix_soundness",
    "make_abort_in_flight": "error_contract no_double_free write_isolation content_equality accounting",
    "make_late_write": "input_tokens",
}


@pytest.mark.parametrize("make", BUGS)
def test_each_bug_of_mini_sglang_is_found_alone(make: str) -> None:
    failure = walk(MODEL, getattr(adapter_of(MINI), make), 10_000).failure
    assert failure is not None
    assert failure.law in BUGS[make].split()


def test_in_the_normal_loop_no_write_is_late() -> None:
    adapter = adapter_of(MINI)
    kind = partial(adapter.RepairedScheduler, left=("late_write", "early_end", "late_reply", "abort_in_flight"))
    assert walk(MODEL, partial(adapter.MiniSglangScheduler, overlap=False, kind=kind), 5_000).failure is None


def preempts_without_freeing(_original: Any, scheduler: Any, seq: Any) -> None:
    seq.status = type(seq.status).WAITING
    seq.is_prefill = True
    seq.num_cached_tokens = 0
    seq.block_table = []
    scheduler.waiting.appendleft(seq)


def preempts_nobody_back(original: Any, scheduler: Any, seq: Any) -> None:
    original(scheduler, seq)
    scheduler.waiting.remove(seq)


def forgets_what_it_has_given_away(original: Any, manager: Any, budget: int) -> Any:
    reserved, manager.decode_manager = manager.decode_manager, type(manager.decode_manager)(1)
    batch = original(manager, budget)
    manager.decode_manager = reserved
    return batch


def keeps_the_row(_original: Any, _table: Any, _row: int) -> None:
    pass


def counts_rejected_as_computed(original: Any, scheduler: Any, output: Any, ran: Any) -> Any:
    drafts = output.scheduled_spec_decode_tokens
    output.scheduled_spec_decode_tokens = {}
    answers = original(scheduler, output, ran)
    output.scheduled_spec_decode_tokens = drafts
    return answers


def keeps_placeholders(original: Any, scheduler: Any, request: Any, *args: Any, **options: Any) -> None:
    placeholders = request.num_output_placeholders
    original(scheduler, request, *args, **options)
    request.num_output_placeholders = placeholders


def takes_nothing_off(_original: Any, _adapter: Any, _accepted: Any) -> dict[str, int]:
    return {}


def test_no_chunk_of_sglang_starves_where_decodes_leave_it_room() -> None:
    adapter = adapter_of(SGLANG)
    trace = load_trace(ENGINES / "sglang" / "sglang-scheduler-starved-chunk.jsonl")
    repaired = partial(adapter.make_mixed, kind=adapter.RepairedScheduler)
    with Watchdog(5.0).watching() as watchdog:
        assert run_ops(MODEL, repaired, trace.scope, trace.ops, watchdog) is None


def retracts_for_good(original: Any, scheduler: Any, req: Any, is_retracted: bool = False) -> None:
    if not is_retracted:
        original(scheduler, req)


def retracts_to_the_front(original: Any, scheduler: Any, req: Any, is_retracted: bool = False) -> None:
    original(scheduler, req, is_retracted)
    if is_retracted:
        scheduler.waiting_queue.insert(0, scheduler.waiting_queue.pop())


def runs_on_after_an_abort(original: Any, req: Any, *args: Any) -> None:
    req.to_finish = None
    original(req, *args)


def relays_to_other_rows(original: Any, relay: Any, rows: Any, payload: Any) -> None:
    original(relay, rows.flip(0), payload)


def keeps_tokens_of_the_retracted(original: Any, processor: Any, batch: Any, result: Any) -> None:
    for req in batch.reqs:
        req.is_retracted = False
    original(processor, batch, result)


def counts_one_page_less(original: Any, batch: Any, *args: Any) -> int:
    return max(0, int(original(batch, *args)) - batch.token_to_kv_pool_allocator.page_size)


def retracts_without_freeing(original: Any, batch: Any, *args: Any, **options: Any) -> Any:
    tree = batch.tree_cache
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(tree), "unlock", lambda *_args: None)
        return original(batch, *args, **options)


@pytest.mark.parametrize(
    ("engine", "make", "owner", "method", "broken", "law"),
    [
        (
            NANO,
            "make",
            "nanovllm.engine.scheduler:Scheduler",
            "preempt",
            preempts_without_freeing,
            "leak_freedom accounting",
        ),
        (NANO, "make", "nanovllm.engine.scheduler:Scheduler", "preempt", preempts_nobody_back, "one_queue"),
        (
            MINI,
            "make_repaired",
            "minisgl.scheduler.prefill:PrefillManager",
            "schedule_next_batch",
            forgets_what_it_has_given_away,
            "error_contract",
        ),
        (
            MINI,
            "make_repaired",
            "minisgl.scheduler.table:TableManager",
            "free",
            keeps_the_row,
            "progress every_request_ends",
        ),
        (
            SGLANG,
            "make",
            "sglang.srt.managers.scheduler:Scheduler",
            "_add_request_to_queue",
            retracts_for_good,
            "one_queue preemption_frees",
        ),
        (
            SGLANG,
            "make",
            "sglang.srt.managers.scheduler:Scheduler",
            "_add_request_to_queue",
            retracts_to_the_front,
            "admission_order",
        ),
        (
            SGLANG,
            "make_overlap",
            "sglang.srt.managers.schedule_batch:Req",
            "update_finish_state",
            runs_on_after_an_abort,
            "ending",
        ),
        (
            SGLANG,
            "make_overlap",
            "sglang.srt.managers.overlap_utils:FutureMap",
            "stash",
            relays_to_other_rows,
            "input_tokens",
        ),
        (
            SGLANG,
            "make_overlap",
            "sglang.srt.managers.scheduler_components.batch_result_processor:SchedulerBatchResultProcessor",
            "process_batch_result_decode",
            keeps_tokens_of_the_retracted,
            "error_contract continuity ending",
        ),
        (
            SGLANG,
            "make",
            "sglang.srt.managers.schedule_batch:ScheduleBatch",
            "new_tokens_required_next_decode",
            counts_one_page_less,
            "error_contract",
        ),
        (
            SGLANG,
            "make",
            "sglang.srt.managers.schedule_batch:ScheduleBatch",
            "retract_decode",
            retracts_without_freeing,
            "accounting leak_freedom",
        ),
        (
            VLLM,
            "make_ngram",
            "vllm.v1.core.sched.scheduler:Scheduler",
            "update_from_output",
            counts_rejected_as_computed,
            "continuity progress",
        ),
        (
            VLLM,
            "make_async_ngram",
            "vllm.v1.core.sched.scheduler:Scheduler",
            "update_from_output",
            counts_rejected_as_computed,
            "continuity",
        ),
        (
            VLLM,
            "make_async_eagle",
            "vllm.v1.core.sched.scheduler:Scheduler",
            "_preempt_request",
            keeps_placeholders,
            "continuity sampling error_contract",
        ),
        (
            VLLM,
            "make_async_eagle",
            "kvlockstep.impl.engines.vllm.scheduler:VllmScheduler",
            "_rejections",
            takes_nothing_off,
            "continuity",
        ),
    ],
)
def test_a_broken_scheduler_is_caught(
    monkeypatch: pytest.MonkeyPatch, engine: str, make: str, owner: str, method: str, broken: Any, law: str
) -> None:
    target = adapter_of(engine)
    spoiled = resolve_name(owner)
    original = getattr(spoiled, method)
    monkeypatch.setattr(spoiled, method, lambda *args, **options: broken(original, *args, **options))
    failure = walk(MODEL, getattr(target, make), 20_000).failure
    assert failure is not None
    assert failure.law in law.split()
