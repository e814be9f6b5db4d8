"""Cost of groups: a step of the judges beside one without the trait, and our manager beside the one of blocks."""

from __future__ import annotations

import random
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from kvlockstep.bench.timing import Speed, no_gc
from kvlockstep.bench.transfers import cpu_seconds
from kvlockstep.models.core.model import Factory
from kvlockstep.models.registry import model_of
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.kv_manager.groups.geometries import FullAndWindow, StatePool, TwoWindows, WindowAlone
from kvlockstep.reference.kv_scheduler import grouped
from kvlockstep.reference.kv_scheduler.scheduler import KVScheduler

ROUNDS, STEPS = 9, 3000
# Three groups beside one full group, which is the same as no trait.
GOAL = 2.0
BLOCKS, BLOCK_SIZE, PROMPT, SHARED, RUNNING = 4096, 16, 512, 256, 16
PROMPTS = 400
FULL, WINDOW = Group("full", BLOCK_SIZE), Group("window", BLOCK_SIZE, reach=128)
LARGE, STATE = Group("window", BLOCK_SIZE, reach=200), Group("state", 4 * BLOCK_SIZE)
GEOMETRIES = {
    "one full group": (FULL,),
    "full and a window": (FULL, WINDOW),
    "full and two windows": (FULL, WINDOW, LARGE),
    "full, a window and states": (FULL, WINDOW, STATE),
}


class OneGroup(KVManager):
    """The reference with the trait, which says no more than that there is one group of full attention."""

    def __init__(self, blocks: int, block_size: int) -> None:
        super().__init__(blocks, block_size)
        self.groups = (Group("full", block_size),)


JUDGED: dict[str, tuple[Factory, dict[str, Factory]]] = {
    "kv_manager": (
        KVManager,
        {
            "one full group": OneGroup,
            "a window alone": WindowAlone,
            "full and a window": FullAndWindow,
            "full and two windows": TwoWindows,
            "full, a window and states": StatePool,
        },
    ),
    "kv_scheduler": (
        KVScheduler,
        {
            "full and a window": grouped.FullAndWindow,
            "full and two windows": grouped.TwoWindows,
            "full, a window and states": grouped.StatePool,
        },
    ),
}


def bench_judges(rounds: int = ROUNDS, steps: int = STEPS) -> list[Speed]:
    """Rows of the references: microseconds of CPU a random step, the floor without the trait, a seed in each round."""
    rows = []
    for contract, (bare, factories) in JUDGED.items():
        model, times = model_of(contract), defaultdict[str, list[float]](list)
        for seed in range(rounds):
            for name, factory in {"": bare, **factories}.items():
                times[name].append(1e6 * cpu_seconds(model, factory, seed, steps) / steps)
        rows += _rows(contract, "us per step", times, GOAL)
    return rows


def bench_managers(
    blocks: Factory, ours: Callable[..., Any], rounds: int = ROUNDS, prompts: int = PROMPTS
) -> list[Speed]:
    """Rows of our manager with groups: microseconds of CPU for each block of a prompt, the floor in `blocks`."""
    times = defaultdict[str, list[float]](list)
    for seed in range(rounds):
        times[""].append(prefill(blocks(BLOCKS, BLOCK_SIZE), seed, prompts))
        for name, groups in GEOMETRIES.items():
            times[name].append(prefill(ours(groups, {"kv": len(groups) * BLOCKS}), seed, prompts))
    return _rows("our manager", "us per prompt block", times, 0.0)


def prefill(manager: Any, seed: int, prompts: int) -> float:
    """Microseconds of CPU for each block of prompts that begin alike, of which RUNNING are live at a time.

    They are computed in chunks of SHARED tokens, so that a state is there where they part.
    """
    rng = random.Random(seed)
    head = rng.choices(range(1000), k=SHARED)
    tokens = [head + rng.choices(range(1000), k=PROMPT - SHARED) for _ in range(prompts)]
    running: deque[str] = deque()
    with no_gc():
        began = time.process_time()
        for number, prompt in enumerate(tokens):
            name = str(number)
            cached = manager.admit(name, prompt, None, SHARED)
            for chunk in range(cached, PROMPT, SHARED):
                if chunk > cached:
                    manager.reserve(name, SHARED)
                manager.copies()
                manager.launch()
                manager.commit(name, SHARED)
            running.append(name)
            if len(running) > RUNNING:
                manager.finish(running.popleft())
        return 1e6 * (time.process_time() - began) * BLOCK_SIZE / PROMPT / prompts


def _rows(what: str, unit: str, times: Mapping[str, list[float]], goal: float) -> list[Speed]:
    floors = times[""]
    floor = median(floors)
    ratios = {name: median(a / b for a, b in zip(taken, floors, strict=True)) for name, taken in times.items() if name}
    return [Speed(f"{what}, {name}", unit, floor * ratio, floor, goal) for name, ratio in ratios.items()]
