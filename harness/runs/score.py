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
from dataclasses import replace
from functools import partial
from typing import Any

from kvlockstep.core.processes import in_processes, result_of, unheard
from kvlockstep.core.profiles import Profile
from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Outcome, missed_goals, not_evaluated, run_ops
from kvlockstep.drivers.random_walk import RandomWalk
from kvlockstep.models.registry import model_of
from kvlockstep.properties.law import EVERYWHERE, Law
from kvlockstep.runs.drive import drive
from kvlockstep.runs.fault_scores import LONGEST, Clean, FaultScore, Score, Sighting
from kvlockstep.runs.results import HOLDS, INCONCLUSIVE, VIOLATED
from kvlockstep.runs.shrinking import shrink_failure
from kvlockstep.targets.registry import FAULT_PREFIX, Target, faults, known_faults, known_good_targets, resolve

STEP_SECONDS = 0.25
# Of a thorough score, and of any other: what a tenth of the faults needs more is half of all that shrinking takes.
SHRINK_STEPS, FEW_SHRINK_STEPS = 30_000, 500
EXPLORE_SHARE = 0.02


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
