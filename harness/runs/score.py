"""`score`: the faults that the suite catches, and the known-good targets that it does not blame.

Every fault runs under the random driver with each seed. What a seed misses is explored, and if that finds nothing,
Hypothesis runs as well. Traces are shrunk a little, so that the laws that see them are those that the fault breaks. A
`thorough` score also explores faults that were caught, runs Hypothesis on them with a third of its examples, and
shrinks as far as a check does: only its traces have to be short. Known-good targets run under the random driver, longer
while goals are missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

from kvlockstep.core.processes import in_processes, result_of, unheard
from kvlockstep.core.profiles import Profile
from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Outcome, missed_goals, not_evaluated, run_ops
from kvlockstep.drivers.random_walk import RandomWalk
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.properties.law import EVERYWHERE, Law
from kvlockstep.properties.overlaps import shadow_of
from kvlockstep.runs.drive import drive
from kvlockstep.runs.results import HOLDS, INCONCLUSIVE, VIOLATED, worst
from kvlockstep.runs.shrinking import shrink_failure
from kvlockstep.targets.registry import FAULT_PREFIX, Target, faults, known_faults, known_good_targets, resolve

STEP_SECONDS = 0.25
# Of a thorough score, and of any other: what a tenth of the faults needs more is half of all that shrinking takes.
SHRINK_STEPS, FEW_SHRINK_STEPS = 30_000, 500
EXPLORE_SHARE = 0.02
MEDIAN_LENGTH = 6
LONGEST = 12


@dataclass(frozen=True)
class Sighting:
    """One driver with one seed on one fault; `law` is None if it found nothing within its budget."""

    driver: str
    seed: int
    law: str | None
    steps: int
    seconds: float


@dataclass
class FaultScore:
    """The score of one fault. `laws` are those that see the shrunk trace: each one found without those before it."""

    id: str
    contract: str
    expected: str
    sightings: list[Sighting] = field(default_factory=list)
    trace: Trace | None = None
    laws: tuple[str, ...] = ()
    seconds: float = 0.0

    def caught_by(self, driver: str) -> Sighting | None:
        """The driver's sighting with the lowest seed that caught the fault."""
        return next((s for s in self.sightings if s.driver == driver and s.law), None)

    def caught_with(self, seed: int) -> bool:
        """Exploration knows no seed, so what it catches is caught with every one."""
        return any(s.law for s in self.sightings if s.seed == seed or s.driver == "explore")

    @property
    def seeds(self) -> list[int]:
        return sorted({s.seed for s in self.sightings})

    @property
    def caught(self) -> bool:
        return all(self.caught_with(seed) for seed in self.seeds)

    @property
    def by_luck(self) -> bool:
        return not self.caught and any(s.law for s in self.sightings)

    @property
    def first(self) -> Sighting | None:
        """The sighting that took the fewest steps."""
        return min((s for s in self.sightings if s.law), key=lambda s: s.steps, default=None)

    def to_json(self) -> dict[str, Any]:
        first = self.first
        return {
            "id": self.id,
            "contract": self.contract,
            "caught": self.caught,
            "law": first and first.law,
            "driver": first and first.driver,
            "steps": first and first.steps,
            "trace_length": self.trace and len(self.trace.ops),
            "seconds": round(self.seconds, 3),
            "expected": self.expected,
            "laws": list(self.laws),
            "sightings": [asdict(s) for s in self.sightings],
        }


@dataclass(frozen=True)
class Clean:
    """A known-good target, with the verdict of the suite."""

    contract: str
    target: str
    verdict: str
    steps: int
    seconds: float
    law: str | None = None
    missed: tuple[str, ...] = ()


@dataclass(frozen=True)
class LawScore:
    """`first`: faults that this law reports; `sees`: faults that it would; `alone`: those that no other law sees.

    `company` are the laws that see everything that this one sees. The laws of every contract (agreement with the
    reference, errors, time) do not count as others. `reason` says why it need not be alone.
    """

    contract: str
    id: str
    first: int
    sees: int
    alone: tuple[str, ...]
    company: tuple[str, ...]
    reason: str | None = None


@dataclass
class Score:
    """The score. `whole`: of all faults, not only chosen ones. `thorough`: traces are as short as a check makes them.

    Only of a thorough score the lengths of the shortest traces count, and only of one that is both their median.
    """

    faults: list[FaultScore] = field(default_factory=list)
    clean: list[Clean] = field(default_factory=list)
    seconds: float = 0.0
    whole: bool = True
    thorough: bool = False

    @property
    def missed(self) -> list[FaultScore]:
        return [f for f in self.faults if not f.caught]

    @property
    def lengths(self) -> list[int]:
        return [len(f.trace.ops) for f in self.faults if f.trace is not None]

    @property
    def too_long(self) -> list[FaultScore]:
        return [f for f in self.faults if self.thorough and f.trace is not None and len(f.trace.ops) > LONGEST]

    @property
    def median_length(self) -> float:
        return median(self.lengths) if self.lengths else 0.0

    @property
    def blind(self) -> list[LawScore]:
        """The laws that see nothing, for no stated reason. Which law is alone hangs on the traces; see the tests."""
        return [law for law in self.laws() if not law.sees and law.reason is None] if self.whole else []

    @property
    def verdict(self) -> str:
        short = not (self.whole and self.thorough) or self.median_length <= MEDIAN_LENGTH
        wrong = self.missed or self.too_long or self.blind or not short
        return worst([VIOLATED if wrong else HOLDS, *(clean.verdict for clean in self.clean)])

    def laws(self) -> list[LawScore]:
        """The law side of the matrix law x fault."""
        contracts = [name for name in MODELS if any(f.contract == name for f in self.faults)]
        return [self._law(contract, law) for contract in contracts for law in model_of(contract).laws]

    def _law(self, contract: str, law: Law[Any]) -> LawScore:
        faults = [f for f in self.faults if f.contract == contract and law.id in f.laws]
        everywhere = {other.id for other in EVERYWHERE}
        others = [set(f.laws) - everywhere - {law.id} for f in faults]
        alone = tuple(f.id for f, other in zip(faults, others, strict=True) if not other)
        company = sorted(set.intersection(*others)) if others else ()
        first = sum(f.laws[0] == law.id for f in faults)
        shadow = None if alone else shadow_of(contract, law.id)
        return LawScore(contract, law.id, first, len(faults), alone, tuple(company), shadow and shadow.why)

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "caught": len(self.faults) - len(self.missed),
            "total": len(self.faults),
            "median_trace_length": self.median_length,
            "faults": [f.to_json() for f in self.faults],
            "laws": [asdict(law) for law in self.laws()],
            "clean": [asdict(clean) for clean in self.clean],
            "seconds": round(self.seconds, 1),
        }


def score(
    profile: Profile,
    *,
    contracts: Sequence[str],
    faults: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1, 2),
    clean_times: float = 0.25,
    thorough: bool = False,
    jobs: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> Score:
    """Scores the faults of the contracts, or only `faults`; with `faults` no known-good targets run.

    Known-good targets get `clean_times` the profile's random steps, and all of them where that misses goals; 0 leaves
    them out. `progress` hears (done, all).
    """
    started = time.perf_counter()
    result = Score(whole=not faults, thorough=thorough)
    known = {id_: contract for contract in contracts for id_ in known_faults(contract)}
    wanted = [id_ for id_ in known if not faults or id_ in faults]
    good = [(c, name) for c in contracts for name in known_good_targets(c)] if clean_times and not faults else []
    steps = int(profile.random_steps * clean_times)
    # Faults come first: none imports torch, and a process that has not forks in a tenth of the time.
    calls: list[Callable[[], Clean | FaultScore]] = [
        *(partial(_score_fault, known[id_], id_, profile, tuple(seeds), thorough) for id_ in wanted),
        *(partial(_run_clean, c, name, profile, steps, seeds[0]) for c, name in good),
    ]
    ended: dict[int, Clean | FaultScore] = {}
    with in_processes([unheard(call) for call in calls], jobs) as ends:
        for end in ends:
            ended[end.number] = result_of(end)
            if progress is not None:
                progress(len(ended), len(calls))
    for _, one in sorted(ended.items()):
        if isinstance(one, Clean):
            result.clean.append(one)
        else:
            result.faults.append(one)
    result.seconds = time.perf_counter() - started
    return result


def _score_fault(
    contract: str, id_: str, profile: Profile, seeds: tuple[int, ...], thorough: bool = False
) -> FaultScore:
    target = resolve(contract, FAULT_PREFIX + id_)
    result = FaultScore(id_, contract, faults()[id_].law)
    budget = replace(
        profile,
        explore_steps=round(profile.explore_steps * EXPLORE_SHARE),
        step_seconds=STEP_SECONDS,
        shrink_steps=SHRINK_STEPS if thorough else FEW_SHRINK_STEPS,
        short_enough=profile.short_enough if thorough else LONGEST,
        simplify=thorough,
    )
    started = time.perf_counter()
    traces = []
    for driver, seed in _runs(seeds, result, thorough):
        share = 3 if driver == "hypothesis" and result.caught_with(seed) else 1
        outcome = drive(driver, target, replace(budget, examples=budget.examples // share), seed, samples=False)
        failure = outcome.failure
        law = failure.law if failure is not None else None
        result.sightings.append(Sighting(driver, seed, law, outcome.steps, round(outcome.seconds, 3)))
        traces += [failure] if failure is not None else []
    if traces:
        result.trace = _shortest(target, traces, budget)
        result.laws = tuple(laws_that_see(target, result.trace))
    result.seconds = time.perf_counter() - started
    return result


def _shortest(target: Target, traces: list[Trace], budget: Profile) -> Trace:
    """Shrinks the shortest trace, and the next where that ends in a long one: shrinking finds local minima."""
    best: Trace | None = None
    for trace in sorted(traces, key=lambda trace: len(trace.ops)):
        short = shrink_failure(target, trace.but(target=target.name), budget)
        best = short if best is None or len(short.ops) < len(best.ops) else best
        if len(best.ops) <= LONGEST:
            break
    assert best is not None
    return best


def _runs(seeds: tuple[int, ...], so_far: FaultScore, thorough: bool) -> Iterator[tuple[str, int]]:
    if thorough:
        yield "explore", seeds[0]
    for seed in seeds:
        yield "random", seed
    if not (thorough or so_far.caught):
        yield "explore", seeds[0]
    for seed in seeds:
        if (thorough and seed == seeds[0]) or not so_far.caught_with(seed):
            yield "hypothesis", seed


def laws_that_see(target: Target, trace: Trace) -> Iterator[str]:
    """The laws that the trace violates, each found without those before it, as far as a model gets without them."""
    model_type = model_of(target.contract)
    laws = {law.id: law for law in model_type.laws if law not in EVERYWHERE}
    seen: list[Law[Any]] = []
    with Watchdog(STEP_SECONDS).watching() as watchdog:
        while True:
            try:
                again = run_ops(model_type.without(seen), target.factory, trace.scope, trace.ops, watchdog)
            except Exception:
                return
            if again is None:
                return
            yield again.law
            if again.law not in laws:
                return
            assert laws[again.law] not in seen, f"the model of {target.contract} does not judge by its own laws"
            seen.append(laws[again.law])


def _run_clean(contract: str, name: str, profile: Profile, steps: int, seed: int) -> Clean:
    target, model_type = resolve(contract, name), model_of(contract)

    def missed_by(outcome: Outcome) -> tuple[str, ...]:
        never = not_evaluated(model_type, outcome.evaluated, outcome.not_checked)
        return missed_goals(model_type, outcome.reach, outcome.unreachable) + never

    driver = RandomWalk(enough=lambda outcome: outcome.steps >= steps and not missed_by(outcome))
    budget = replace(profile, random_steps=max(steps, profile.random_steps))
    outcome = drive(driver, target, budget, seed, samples=False)
    missed = missed_by(outcome)
    verdict = VIOLATED if outcome.failure is not None else INCONCLUSIVE if missed else HOLDS
    law = outcome.failure.law if outcome.failure is not None else None
    return Clean(contract, name, verdict, outcome.steps, round(outcome.seconds, 1), law, missed)
