"""Guided against uniform random episodes in one run: states and faults by steps, and the time that guiding takes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import SAMPLED_STEPS, Outcome
from kvlockstep.drivers.guided import Guide
from kvlockstep.drivers.random_walk import run_episode
from kvlockstep.models.core.model import Factory, Model
from kvlockstep.models.core.op import Op
from kvlockstep.models.registry import model_of
from kvlockstep.targets.registry import FAULT_PREFIX, known_faults, resolve

CONTRACTS = ("kv_manager", "block_pool", "radix_cache", "slot_prefix_cache", "kv_scheduler", "kv_streams")
STEPS = 10_000
SEEDS = 3
UNIFORM, GUIDED = "uniform", "guided"
VARIANTS = (UNIFORM, GUIDED)
# As in a campaign, so that a shard knows as much here as there.
SHARD_EPISODES = 64
# Hard is what uniform takes so long to find with a seed that is not among those compared.
HARD_STEPS = 500
SCOUT = 1_000
STEP_SECONDS = 3.0


@dataclass
class GuidedRow:
    """One way to choose episodes on one contract.

    `states`: different abstract states per million steps on the reference. `looking`: the share of the time that goes
    into looks at the state. Of `tried` runs on `hard` faults `found` ended in a finding within the budget, `spent`
    steps in all; `ratio` is the geometric mean of a run's steps in those of uniform, a run without a finding counting
    as its budget.
    """

    contract: str
    variant: str
    states: float
    looking: float
    hard: int = 0
    found: int = 0
    spent: int = 0
    ratio: float = 1.0
    runs: list[int] = field(default_factory=list, repr=False)

    @property
    def tried(self) -> int:
        return len(self.runs)

    @property
    def per_million(self) -> float:
        """Findings per million steps."""
        return self.found * 1e6 / self.spent if self.spent else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "tried": self.tried, "per_million": self.per_million}


def bench_guided(contracts: Sequence[str] = CONTRACTS, steps: int = STEPS, seeds: int = SEEDS) -> Iterator[GuidedRow]:
    """Compares all variants, one contract after the other; `steps` is the budget of each run."""
    for contract in contracts:
        yield from _compare(contract, steps, seeds)


def _compare(contract: str, steps: int, seeds: int) -> list[GuidedRow]:
    model_type, reference = model_of(contract), resolve(contract, "reference").factory
    # By id, so that a fault that moves to another file changes no seed of the others.
    faults = {id_: resolve(contract, FAULT_PREFIX + id_).factory for id_ in sorted(known_faults(contract))}
    with Watchdog(STEP_SECONDS).watching() as watchdog:
        rows = []
        for variant in VARIANTS:
            states = _states(model_type, reference, variant, steps, watchdog)
            rows.append(GuidedRow(contract, variant, states, _looking(model_type, reference, variant, steps, watchdog)))
        hard = [
            (number, factory)
            for number, factory in enumerate(faults.values())
            if _play(model_type, factory, UNIFORM, SCOUT + number, steps, watchdog).steps >= HARD_STEPS
        ]
        for number, factory in hard:
            for seed in range(seeds):
                for row in rows:
                    # Faults with the same seed would all be tried with the same episodes.
                    own = number * seeds + seed
                    outcome = _play(model_type, factory, row.variant, own, steps, watchdog)
                    row.runs.append(outcome.steps)
                    row.found += outcome.failure is not None
                    row.spent += outcome.steps
    for row in rows:
        row.hard = len(hard)
        if row.runs:
            ratios = [math.log(max(own, 1) / max(base, 1)) for own, base in zip(row.runs, rows[0].runs, strict=True)]
            row.ratio = math.exp(fmean(ratios))
    return rows


def _play(
    model_type: type[Model[Any]], factory: Factory, variant: str, seed: int, steps: int, watchdog: Watchdog
) -> Outcome:
    """Shards of one seed until there is a finding or the steps are taken."""
    outcome = Outcome(variant, sampled=SAMPLED_STEPS)
    episode = 0
    while outcome.steps < steps and outcome.failure is None:
        if episode % SHARD_EPISODES == 0:
            guide = Guide(model_type, seed=seed)
        if variant == GUIDED:
            outcome.failure = guide.run_episode(factory, episode, watchdog, outcome)
        else:
            outcome.failure = run_episode(model_type, factory, seed, episode, watchdog, outcome)
        episode += 1
    return outcome


def _states(model_type: type[Model[Any]], factory: Factory, variant: str, steps: int, watchdog: Watchdog) -> float:
    seen: set[int] = set()

    class Noted(model_type):  # type: ignore[misc, valid-type]
        def step(self, op: Op) -> Any:
            answer = super().step(op)
            seen.add(hash((self.scope, self.sketch())))
            return answer

    outcome = _play(Noted, factory, variant, 0, steps, watchdog)
    return len(seen) * 1e6 / outcome.steps


def _looking(model_type: type[Model[Any]], factory: Factory, variant: str, steps: int, watchdog: Watchdog) -> float:
    spent = 0.0

    class Timed(model_type):  # type: ignore[misc, valid-type]
        def sketch(self) -> int:
            nonlocal spent
            start = time.process_time()
            state = hash(super().sketch())
            spent += time.process_time() - start
            return state

    start = time.process_time()
    _play(Timed, factory, variant, 0, steps, watchdog)
    return spent / (time.process_time() - start)


def print_guided(console: Console, rows: Sequence[GuidedRow]) -> None:
    """The second table of `bench drivers`."""
    title = "guided against uniform random episodes: states and findings per million steps, steps to a finding"
    table = Table(box=None, title=title, title_justify="left")
    headings = ("contract", "episodes", "states", "looking", "hard faults", "found", "findings", "steps")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in headings[:2] else "right")
    for row in rows:
        of_faults = (f"{row.found}/{row.tried}", f"{row.per_million:,.0f}", f"{row.ratio:.2f}x") if row.tried else ()
        table.add_row(row.contract, row.variant, f"{row.states:,.0f}", f"{row.looking:.0%}", f"{row.hard}", *of_faults)
    console.print(table)
