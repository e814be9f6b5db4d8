"""Cost of `record`: a manager under a steady load, recorded and bare, in turn within one run."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kvlockstep.bench.timing import Speed, no_gc
from kvlockstep.runs.record import Recorder

BLOCKS, BLOCK_SIZE = 2048, 16
VOCABULARY = 50_000
ROUNDS = 7


@dataclass(frozen=True)
class Load:
    """`requests` in all, `running` at a time; their prompts have `prompt` tokens, the first `shared` in common."""

    requests: int = 200
    running: int = 16
    prompt: int = 512
    shared: int = 256
    output: int = 64


LOAD = Load()


def bench_record(targets: dict[str, Callable[..., Any]], rounds: int = ROUNDS) -> list[Speed]:
    """Rows for each kv_manager: microseconds of one operation recorded, its floor bare; the medians of `rounds`."""
    return [row for name, make in targets.items() for row in _rows(name, make, rounds)]


def _rows(name: str, make: Callable[..., Any], rounds: int) -> list[Speed]:
    bare, recorded = [], []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.jsonl"
        for _ in range(rounds):
            bare.append(_time(make(BLOCKS, BLOCK_SIZE)))
            with Recorder(make(BLOCKS, BLOCK_SIZE), path) as recorder:
                recorded.append(_time(recorder))
    ratio = median(r / b for r, b in zip(recorded, bare, strict=True))
    floor = median(bare)
    return [Speed(f"{name}, recorded", "us per operation", floor * ratio, floor, 0.0)]


def _time(manager: Any) -> float:
    """Microseconds per operation."""
    with no_gc():
        start = time.perf_counter()
        operations = serve(manager)
        return 1e6 * (time.perf_counter() - start) / operations


def serve(manager: Any, load: Load = LOAD) -> int:
    """Schedules requests that keep the manager busy; returns the operations of its trace.

    A step decodes a token of each running request and admits one in the place of one that has ended.
    """
    rng = random.Random(5)
    head = rng.choices(range(VOCABULARY), k=load.shared)
    rest = load.prompt - load.shared
    waiting = [(f"request-{i}", head + rng.choices(range(VOCABULARY), k=rest)) for i in range(load.requests)]
    left: dict[str, int] = {}
    operations = 0
    while waiting or left:
        scheduled = [(rid, 1) for rid in left]
        for rid, _ in scheduled:
            manager.append(rid, left[rid])
            if not manager.reserve(rid, 1):
                raise AssertionError("the pool is too small for the load")
        if waiting and len(left) < load.running:
            rid, prompt = waiting.pop()
            cached = manager.admit(rid, prompt, None, load.prompt)
            scheduled.append((rid, load.prompt - cached))
            left[rid] = load.output
        manager.copies()
        manager.launch()
        for rid, n in scheduled:
            manager.commit(rid, n)
            left[rid] -= 1
        ended = [rid for rid, tokens in left.items() if not tokens]
        for rid in ended:
            manager.finish(rid)
            del left[rid]
        operations += len(scheduled) + 1 + len(ended)
    return operations
