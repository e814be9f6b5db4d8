"""Steps and CPU time to the detection of hard faults, for several ways to play random episodes, in one run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import SAMPLED_STEPS, Outcome
from kvlockstep.drivers.random_walk import EVERY_LOOK, SPARING, run_episode
from kvlockstep.models.core.model import Factory, Model
from kvlockstep.models.registry import model_of
from kvlockstep.targets.registry import FAULT_PREFIX, known_faults, resolve

CONTRACTS = ("kv_manager", "kv_scheduler")
STEPS = 10_000
SEEDS = 10
# Far from the seeds that are compared.
SCOUTS = range(1_000_000, 1_000_003)
STEP_SECONDS = 0.5
# How often the episodes look at everything; the first way is what the others are compared with.
WAYS: dict[str, Sequence[int]] = {"every look": EVERY_LOOK, "sparing": SPARING}


@dataclass
class Detection:
    """One way on one contract: `found` of `tried` runs on `hard` faults, in `steps` and CPU `seconds` altogether.

    `ratio` is the geometric mean of a run's CPU time in that of the first way. A run without a finding counts as long
    as it took.
    """

    contract: str
    way: str
    hard: int
    found: int = 0
    steps: int = 0
    ratio: float = 1.0
    runs: list[float] = field(default_factory=list, repr=False)

    @property
    def tried(self) -> int:
        return len(self.runs)

    @property
    def seconds(self) -> float:
        return sum(self.runs)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "tried": self.tried, "seconds": self.seconds}


def bench_detection(
    contracts: Sequence[str] = CONTRACTS, steps: int = STEPS, seeds: int = SEEDS
) -> Iterator[Detection]:
    """Compares the ways on the hard half of the faults of each contract; a run takes at most `steps`.

    Hard are the faults that take the first way longest, by the median of the SCOUTS.
    """
    for contract in contracts:
        yield from _compare(contract, steps, seeds)


def _compare(contract: str, steps: int, seeds: int) -> list[Detection]:
    model_type, first = model_of(contract), next(iter(WAYS.values()))
    # By id, so that a fault that moves to another file changes no seed of the others.
    faults = [resolve(contract, FAULT_PREFIX + id_).factory for id_ in sorted(known_faults(contract))]
    with Watchdog(STEP_SECONDS).watching() as watchdog:

        def taken(number: int) -> float:
            runs = (_run(model_type, faults[number], first, own_seed(number, s), steps, watchdog) for s in SCOUTS)
            return median(outcome.steps for outcome in runs)

        by_steps = sorted(range(len(faults)), key=taken)
        hard = sorted(by_steps[len(faults) // 2 :])
        rows = [Detection(contract, way, len(hard)) for way in WAYS]
        for number in hard:
            for seed in range(seeds):
                for row, looks in _in_turn(rows, seed):
                    outcome = _run(model_type, faults[number], looks, own_seed(number, seed), steps, watchdog)
                    row.runs.append(outcome.seconds)
                    row.found += outcome.failure is not None
                    row.steps += outcome.steps
    for row in rows:
        shares = (own / base for own, base in zip(row.runs, rows[0].runs, strict=True))
        row.ratio = math.exp(fmean(math.log(share) for share in shares))
    return rows


def own_seed(number: int, seed: int) -> int:
    """Faults with the same seed would all be tried with the same episodes."""
    return number * 1_000 + seed


def _in_turn(rows: Sequence[Detection], seed: int) -> Iterable[tuple[Detection, Sequence[int]]]:
    """The ways with their rows; who begins changes with the seed, since the first run of a fault warms things up."""
    pairs = list(zip(rows, WAYS.values(), strict=True))
    return pairs if seed % 2 else reversed(pairs)


def _run(
    model_type: type[Model[Any]], factory: Factory, looks: Sequence[int], seed: int, steps: int, watchdog: Watchdog
) -> Outcome:
    """Episodes of one seed until there is a finding or the steps are taken; `seconds` are CPU time."""
    outcome = Outcome("random", sampled=SAMPLED_STEPS)
    started = time.process_time()
    while outcome.steps < steps and outcome.failure is None:
        outcome.failure = run_episode(model_type, factory, seed, outcome.states, watchdog, outcome, looks)
        outcome.states += 1
    outcome.seconds = time.process_time() - started
    return outcome


def print_detection(console: Console, rows: Sequence[Detection]) -> None:
    """The table of `bench faults`."""
    title = "the hard half of the faults: CPU time and steps until random episodes find them"
    table = Table(box=None, title=title, title_justify="left")
    headings = ("contract", "episodes", "faults", "found", "steps", "CPU s", "us a step", "CPU of a run")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in headings[:2] else "right")
    for row in rows:
        found = f"{row.found}/{row.tried}"
        figures = f"{row.steps:,}", f"{row.seconds:.1f}", f"{row.seconds / row.steps * 1e6:.0f}", f"{row.ratio:.2f}x"
        table.add_row(row.contract, row.way, f"{row.hard}", found, *figures)
    console.print(table)
