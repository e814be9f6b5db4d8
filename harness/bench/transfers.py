"""Cost of transfers: a step of a kv_scheduler with tiers, beside one of the reference without."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from kvlockstep.bench.timing import Speed
from kvlockstep.core.profiles import Profile
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.random_walk import RandomWalk
from kvlockstep.drivers.run import Run
from kvlockstep.models.core.model import Factory, Model
from kvlockstep.models.registry import model_of

ROUNDS, STEPS = 9, 4000
GOAL = 1.5


def bench_transfers(bare: Factory, tiered: dict[str, Factory], rounds: int = ROUNDS) -> list[Speed]:
    """Rows for schedulers with tiers: microseconds of CPU a step, the floor `bare`, with a seed in turn each round."""
    model = model_of("kv_scheduler")
    floors, times = list[float](), {name: list[float]() for name in tiered}
    for seed in range(rounds):
        floors.append(cpu_seconds(model, bare, seed, STEPS))
        for name, factory in tiered.items():
            times[name].append(cpu_seconds(model, factory, seed, STEPS))
    floor = 1e6 * median(floors) / STEPS
    ratios = {name: median(a / b for a, b in zip(taken, floors, strict=True)) for name, taken in times.items()}
    return [Speed(name, "us per step", floor * ratio, floor, GOAL) for name, ratio in ratios.items()]


def cpu_seconds(model: type[Model[Any]], factory: Factory, seed: int, steps: int) -> float:
    """CPU seconds of so many random steps, all laws on."""
    with Watchdog(30.0).watching() as watchdog:
        began = time.process_time()
        RandomWalk().run(Run(model, factory, Profile("bench", random_steps=steps), watchdog, seed))
        return time.process_time() - began
