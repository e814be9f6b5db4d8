"""`bench drivers`: steps per second of the drivers as ratios inside one run, all laws on."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from kvlockstep.drivers.random_walk import random_walk
from kvlockstep.drivers.stateful import hypothesis_run
from kvlockstep.models.registry import model_of
from kvlockstep.targets import resolve
from kvlockstep.watchdog import Watchdog

ROUNDS = 3
RANDOM_SECONDS = 1.0
EXAMPLES, STEPS = 60, 50
ROWS = (("slot_pool", "reference"), ("slot_pool", "pool"), ("kv_manager", "reference"), ("kv_manager", "blocks"))


@dataclass(frozen=True)
class DriverSpeed:
    """Steps per second, medians over the rounds; `ratio` is the median of the rounds' ratios."""

    contract: str
    target: str
    random: float
    hypothesis: float
    ratio: float


def bench_drivers() -> list[DriverSpeed]:
    """Runs both drivers in turn, several rounds."""
    return [_compare(contract, name) for contract, name in ROWS]


def _compare(contract: str, name: str) -> DriverSpeed:
    model_type, factory = model_of(contract), resolve(contract, name).factory
    walks, machines = [], []
    for seed in range(ROUNDS):
        with Watchdog(30.0).watching() as watchdog:
            walk = random_walk(model_type, factory, seed=seed, watchdog=watchdog, seconds=RANDOM_SECONDS)
            machine = hypothesis_run(model_type, factory, seed=seed, watchdog=watchdog, examples=EXAMPLES, steps=STEPS)
        walks.append(walk.steps / walk.seconds)
        machines.append(machine.steps / machine.seconds)
    ratio = statistics.median(w / m for w, m in zip(walks, machines, strict=True))
    return DriverSpeed(contract, name, statistics.median(walks), statistics.median(machines), ratio)


def print_drivers(console: Console, rows: list[DriverSpeed]) -> None:
    """The table of `bench drivers`."""
    table = Table(
        box=None, title=f"steps per second with all laws on, medians of {ROUNDS} rounds", title_justify="left"
    )
    for heading in ("contract", "target", "random", "hypothesis", "ratio"):
        table.add_column(heading, justify="left" if heading in ("contract", "target") else "right")
    for row in rows:
        table.add_row(row.contract, row.target, f"{row.random:,.0f}", f"{row.hypothesis:,.0f}", f"{row.ratio:.0f}x")
    console.print(table)
