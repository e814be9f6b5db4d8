"""The schedulers of nano-vllm and mini-sglang, and vLLM's with drafts, under kv_scheduler."""

from __future__ import annotations

import importlib
import tomllib
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from kvlockstep.drivers.episode import run_ops
from kvlockstep.drivers.random_walk import random_walk
from kvlockstep.models.registry import model_of
from kvlockstep.targets import resolve
from kvlockstep.trace import load_trace
from kvlockstep.watchdog import Watchdog

KNOWN = Path(importlib.import_module("kvlockstep.impl.engines").__path__[0]) / "known"
MODEL = model_of("kv_scheduler")
NANO, MINI, VLLM = "nano_vllm_scheduler", "mini_sglang_scheduler", "vllm_scheduler"


def adapter_of(engine: str) -> Any:
    reason = f"the engine of {engine} is not on this machine: see --engine-path"
    return pytest.importorskip(f"kvlockstep.impl.engines.{engine}", reason=reason, exc_type=ImportError)


def walk(factory: Any, steps: int, seed: int = 1) -> Any:
    with Watchdog(5.0).watching() as watchdog:
        return random_walk(MODEL, factory, seed=seed, watchdog=watchdog, steps=steps)


@pytest.mark.parametrize(
    ("engine", "make"),
    [
        (NANO, "make"),
        (MINI, "make_repaired"),
        (MINI, "make_normal_repaired"),
        (VLLM, "make_ngram"),
        (VLLM, "make_eagle"),
        (VLLM, "make_priority_ngram"),
    ],
)
def test_random_episodes_hold_every_law_and_reach_every_goal(engine: str, make: str) -> None:
    outcome = walk(getattr(adapter_of(engine), make), 6_000)
    assert outcome.failure is None
    assert {goal.id for goal in MODEL.goals} - outcome.reach.keys() <= (outcome.unreachable or set())


@pytest.mark.parametrize("engine", ["nano-vllm", "mini-sglang"])
def test_the_known_divergences_are_still_there(engine: str) -> None:
    adapter_of({"nano-vllm": NANO, "mini-sglang": MINI}[engine])
    for known in tomllib.loads((KNOWN / f"{engine}.toml").read_text())["divergence"]:
        if known["contract"] != "kv_scheduler":
            continue
        trace = load_trace(KNOWN / known["trace"])
        with Watchdog(5.0).watching() as watchdog:
            factory = resolve(known["contract"], known["target"]).factory
            failure = run_ops(MODEL, factory, trace.scope, trace.ops, watchdog)
        assert failure is not None, known["id"]
        assert failure.law == known["law"]
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
    failure = walk(getattr(adapter_of(MINI), make), 10_000).failure
    assert failure is not None
    assert failure.law in BUGS[make].split()


def test_in_the_normal_loop_no_write_is_late() -> None:
    adapter = adapter_of(MINI)
    kind = partial(adapter.RepairedScheduler, left=("late_write", "early_end", "late_reply", "abort_in_flight"))
    assert walk(partial(adapter.MiniSglangScheduler, overlap=False, kind=kind), 5_000).failure is None


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
            VLLM,
            "make_ngram",
            "vllm.v1.core.sched.scheduler:Scheduler",
            "update_from_output",
            counts_rejected_as_computed,
            "continuity progress",
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
    failure = walk(getattr(target, make), 20_000).failure
    assert failure is not None
    assert failure.law in law.split()
