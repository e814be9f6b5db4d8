"""`check`: saved failures, then exhaustive exploration, then Hypothesis, then random episodes, on each target."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kvlockstep.core.errors import UsageError
from kvlockstep.core.failure_page import save_found
from kvlockstep.core.processes import in_order, in_processes
from kvlockstep.core.profiles import Profile, profile_of
from kvlockstep.core.system import unprotected
from kvlockstep.drivers import CHECK_DRIVERS
from kvlockstep.drivers.episode import Outcome, common, missed_goals, not_evaluated
from kvlockstep.models.core.model import Factory
from kvlockstep.models.registry import model_of
from kvlockstep.runs.config import Config
from kvlockstep.runs.drive import drive_apart
from kvlockstep.runs.hangs import retry_of_hang
from kvlockstep.runs.large_tiers import large_tiers
from kvlockstep.runs.progress import Emit, Progress, silent
from kvlockstep.runs.replay_saved import replay_saved
from kvlockstep.runs.results import INCONCLUSIVE, CheckResult, TargetResult, result_of
from kvlockstep.runs.shrinking import shrink_failure
from kvlockstep.runs.supervising import supervises
from kvlockstep.targets.registry import Target, from_factory

FAILURES = Path(Config.dir)


class CheckFailed(AssertionError):
    """A check that does not hold. `report` is its CheckResult; the message is a headline and the failure page."""

    # Where users find it. The summaries of test runners cut off the line in which a longer name stands.
    __module__ = "kvlockstep"

    def __init__(self, report: CheckResult) -> None:
        super().__init__(f"{report.headline()}\n\n{report.text()}")
        self.report = report


def check(
    factory: Factory,
    *,
    contract: str,
    profile: str = "quick",
    seed: int = 0,
    directory: Path | str | None = None,
    raise_on_failure: bool = True,
) -> CheckResult:
    """Checks a factory of your own against a contract.

    `profile` is quick, ci or deep. `directory` keeps failing traces, which the next check runs first (default
    .kvlockstep/failures). Raises CheckFailed, an AssertionError, if a law is violated or a goal was missed,
    unless `raise_on_failure` is False; UsageError if the arguments or the factory are unusable.
    """
    __tracebackhide__ = True  # pytest shows the caller's line and the message or the page
    try:
        target, budget = from_factory(contract, factory), profile_of(profile)
    except UsageError as error:
        raise UsageError(str(error)) from None
    report = CheckResult([check_target(target, budget, seed=seed, directory=Path(directory or FAILURES))])
    if raise_on_failure and not report.holds:
        raise CheckFailed(report)
    return report


@contextmanager
def check_targets(
    targets: Sequence[Target],
    budget_of: Callable[[Target], Profile],
    *,
    seed: int = 0,
    directory: Path = FAILURES,
    emit: Emit = silent,
    drivers: tuple[str, ...] = CHECK_DRIVERS,
    in_process: bool = False,
    jobs: int = 1,
) -> Iterator[Iterator[TargetResult]]:
    """Checks each target, and yields the results in their order. Up to `jobs` targets are checked at the same time.

    Workers are forked when the block is entered. What threads of this process do for a target they would wait for, so
    with threads there are none. A target that has to run in this process is checked when it is its turn, and meanwhile
    `emit` hears nothing of the others. The iterator raises WorkerLost.
    """

    def check_one(target: Target, say: Emit) -> TargetResult:
        return check_target(
            target,
            budget_of(target),
            seed=seed,
            directory=directory,
            emit=say,
            drivers=drivers,
            in_process=in_process,
        )

    alone = in_process or threading.active_count() > 1 or min(jobs, len(targets)) <= 1
    apart = [] if alone else [n for n, target in enumerate(targets) if supervises(target)]
    with in_processes([partial(check_one, targets[n]) for n in apart], jobs, emit) as ended:
        beside = in_order(ended)
        yield (next(beside) if n in apart else check_one(target, emit) for n, target in enumerate(targets))


def check_target(
    target: Target,
    profile: Profile,
    *,
    seed: int = 0,
    directory: Path = FAILURES,
    emit: Emit = silent,
    drivers: tuple[str, ...] = CHECK_DRIVERS,
    in_process: bool = False,
) -> TargetResult:
    """All drivers on one target, stopping at the first violation. `drivers` leaves some out.

    Each driver runs in a child, unless `in_process`: then a debugger can stop in the target, and a target that dies
    takes this process with it.
    """
    result = TargetResult(target.contract, target.name)
    reach: Counter[str] = Counter()
    unreachable: set[str] | None = None

    def note(driver: str, text: str) -> None:
        result.notes.append(text)
        emit(Progress("note", target.contract, target.name, driver, text=text))

    def run(name: str) -> Outcome:
        def progress(steps: int) -> None:
            emit(Progress("progress", target.contract, target.name, name, steps))

        return drive_apart(name, target, profile, seed, directory=directory, progress=progress, in_process=in_process)

    if text := unprotected():
        note("check", text)
    replay_saved(target, directory, profile, result, emit, lambda text: note("replay", text))
    for name in drivers:
        if result.failures:
            break
        emit(Progress("begin", target.contract, target.name, name))
        outcome = run(name)
        if outcome.failure is not None and (retry := retry_of_hang(target, outcome.failure, profile)) is not None:
            note(name, f"{name} runs again: {outcome.failure.message}, but {retry.why}")
            in_process = in_process or retry.in_process
            outcome = run(name)
        if outcome.unsteady:
            note(name, f"{name}: {target.name} did not do the same again, {outcome.unsteady} times")
        path = None
        if outcome.failure is not None:
            emit(Progress("shrink", target.contract, target.name, name, len(outcome.failure.ops)))
            outcome.failure = shrink_failure(target, outcome.failure.but(target=target.name), profile)
            path = save_found(outcome.failure, directory)
        done = result_of(target.contract, target.name, outcome, path)
        result.runs.append(done)
        reach += outcome.reach
        unreachable = common(unreachable, outcome.unreachable)
        result.facts = result.facts or outcome.facts
        result.not_checked = outcome.not_checked or result.not_checked
        emit(Progress("end", target.contract, target.name, name, done.steps, done))
    if text := large_tiers(target, result.facts.get("traits")):
        note("check", text)
    if not result.failures:
        model_type = model_of(target.contract)
        result.missed = missed_goals(model_type, reach, unreachable)
        result.not_evaluated = not_evaluated(model_type, result.evaluated, result.not_checked)
        if (result.missed or result.not_evaluated) and result.runs:
            result.runs[-1].verdict = INCONCLUSIVE
    return result
