"""`check`: saved failures, then exhaustive exploration, then Hypothesis, then random episodes, on one target."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from kvlockstep.core.errors import UsageError
from kvlockstep.core.isolation import ChildLost, SharedWatchdog, in_child
from kvlockstep.core.parent import RUNNING, doing
from kvlockstep.core.profiles import Profile, profile_of
from kvlockstep.core.system import unprotected
from kvlockstep.core.trace import Trace, place_of, save_trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import (
    Outcome,
    Replayed,
    common,
    missed_goals,
    not_evaluated,
    play_ops,
    run_ops,
    unapplied,
)
from kvlockstep.drivers.explore import explore, explore_all
from kvlockstep.drivers.hypothesis_machine import hypothesis_run
from kvlockstep.drivers.random_walk import random_walk
from kvlockstep.drivers.shrink import RunOps, shrink
from kvlockstep.models.core.model import Factory, Model, Scope
from kvlockstep.models.core.op import Unplayable
from kvlockstep.models.registry import model_of
from kvlockstep.properties.law import TERMINATION
from kvlockstep.runs.config import Config
from kvlockstep.runs.results import INCONCLUSIVE, VIOLATED, Report, Run, TargetReport, run_of
from kvlockstep.runs.saved_traces import named_by_us, traces_for
from kvlockstep.runs.supervising import (
    ends_processes,
    play_ops_supervised,
    run_ops_supervised,
    supervised,
    supervises,
    with_answers,
)
from kvlockstep.targets.registry import Target, from_factory

FAILURES = Path(Config.dir)
DRIVERS = ("explore", "hypothesis", "random")

Emit = Callable[["Event"], None]


@dataclass(frozen=True)
class Event:
    """Something a consumer may show: `kind` is begin, progress, end or note."""

    kind: str
    contract: str
    target: str
    driver: str = ""
    steps: int = 0
    run: Run | None = None
    text: str = ""


def silent(_event: Event) -> None:
    """The consumer that shows nothing."""


class CheckFailed(AssertionError):
    """A check that does not hold. `report` has the details; the message is the failure page."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.text())
        self.report = report


def check(
    factory: Factory,
    *,
    contract: str,
    profile: str = "quick",
    seed: int = 0,
    directory: Path | str | None = None,
    raise_on_failure: bool = True,
) -> Report:
    """Checks a factory of your own against a contract.

    `profile` is quick, ci or deep. `directory` keeps failing traces, which the next check runs first (default
    .kvlockstep/failures). Raises CheckFailed, an AssertionError, if a law is violated or a reach goal was missed,
    unless `raise_on_failure` is False; UsageError if the arguments or the factory are unusable.
    """
    target = from_factory(contract, factory)
    report = Report([check_target(target, profile_of(profile), seed=seed, directory=Path(directory or FAILURES))])
    if raise_on_failure and not report.holds:
        __tracebackhide__ = True  # pytest shows the caller's line and the page
        raise CheckFailed(report)
    return report


def check_target(
    target: Target,
    profile: Profile,
    *,
    seed: int = 0,
    directory: Path = FAILURES,
    emit: Emit = silent,
    drivers: tuple[str, ...] = DRIVERS,
    in_process: bool = False,
) -> TargetReport:
    """All drivers on one target, stopping at the first violation. `drivers` leaves some out.

    Each driver runs in a child, unless `in_process`: then a debugger can stop in the target, and a target that dies
    takes this process with it.
    """
    report = TargetReport(target.contract, target.name)
    model_type = model_of(target.contract)
    if text := unprotected():
        _note(report, emit, "check", text)
    replay_saved(target, directory, profile, report, emit)
    reach: Counter[str] = Counter()
    evaluated: Counter[str] = Counter()
    unreachable: set[str] | None = None
    for name in drivers:
        if report.failures:
            break
        emit(Event("begin", target.contract, target.name, name))
        outcome = _run_driver(name, target, profile, seed, emit, in_process)
        if outcome.failure is not None and (retry := _hangs_no_more(target, outcome.failure, profile)) is not None:
            _note(report, emit, name, f"{name} runs again: {outcome.failure.message}, but {retry.why}")
            in_process = in_process or retry.in_process
            outcome = _run_driver(name, target, profile, seed, emit, in_process)
        if outcome.unsteady:
            again = f"{name}: {target.name} did not do the same again, {outcome.unsteady} times"
            _note(report, emit, name, again)
        path = None
        if outcome.failure is not None:
            outcome.failure = shrink_failure(target, outcome.failure.but(target=target.name), profile)
            path = save_trace(outcome.failure, directory)
        run = run_of(target.contract, target.name, outcome, path)
        report.runs.append(run)
        reach += outcome.reach
        evaluated += outcome.evaluated
        unreachable = common(unreachable, outcome.unreachable)
        report.facts = report.facts or outcome.facts
        report.not_checked = outcome.not_checked or report.not_checked
        emit(Event("end", target.contract, target.name, name, run.steps, run))
    if not report.failures:
        report.missed = missed_goals(model_type, reach, unreachable)
        report.not_evaluated = not_evaluated(model_type, evaluated, report.not_checked)
        if (report.missed or report.not_evaluated) and report.runs:
            report.runs[-1].verdict = INCONCLUSIVE
    return report


def _note(report: TargetReport, emit: Emit, driver: str, text: str) -> None:
    """Says something about a target now, and in its report."""
    report.notes.append(text)
    emit(Event("note", report.contract, report.target, driver, text=text))


def replay_saved(target: Target, directory: Path, profile: Profile, report: TargetReport, emit: Emit) -> None:
    """Replays the traces in the directory that are for this target.

    One that a check left and that no longer fails is FIXED and goes. One that says nothing about the target any more,
    since not all of it applies, stays, and leaves the check inconclusive.
    """

    def note(text: str) -> None:
        _note(report, emit, "replay", text)

    if not directory.is_dir():
        return
    traces, skipped = traces_for(target.contract, target.name, directory)
    for text in skipped:
        note(text)
    for path, trace in traces:
        emit(Event("begin", target.contract, target.name, "replay"))
        again = play_trace(target, trace, profile, path)
        outcome = Outcome("replay", steps=len(trace.ops), evaluated=again.evaluated)
        if again.failure is not None:
            outcome.steps = len(again.failure.ops)
            outcome.failure = again.failure.but(
                target=target.name, original=trace.original, unfinished=trace.unfinished
            )
        elif reason := unapplied(trace, again):
            note(f"NOT APPLICABLE {path.name}: {reason}; delete the file if that is as it should be")
        else:
            note(_held(path, trace))
            continue
        run = run_of(target.contract, target.name, outcome, path)
        if again.failure is None:
            run.verdict, run.note = INCONCLUSIVE, report.notes[-1]
            run.cut = run.note
        report.runs.append(run)
        emit(Event("end", target.contract, target.name, "replay", outcome.steps, run))


def _held(path: Path, trace: Trace) -> str:
    """What is to be said of a trace that no longer fails; removes the file if it is one of ours."""
    if not trace.law:
        return f"HOLDS {path.name}"
    if not named_by_us(path):
        return f"FIXED {path.name}: {trace.law} holds now; the file is kept, for its name is not one of ours"
    path.unlink()
    return f"FIXED {path.name}: {trace.law} holds now, the file is removed"


def play_trace(target: Target, trace: Trace, profile: Profile, path: Path | None = None) -> Replayed:
    """Plays a trace under supervision where that is possible.

    Raises UsageError, naming `path` and the line, for an operation that cannot be played on any target.
    """
    watchdog = Watchdog(profile.step_seconds)
    arguments = model_of(target.contract), target.factory, trace.scope, trace.ops, watchdog
    try:
        if supervises(target):
            return play_ops_supervised(*arguments)
        with watchdog.watching():
            return play_ops(*arguments)
    except Unplayable as error:
        if path is None:
            raise
        raise UsageError(f"{place_of(path, error.number)}: malformed trace: {error.reason}") from error


def replay_trace(target: Target, trace: Trace, profile: Profile) -> Trace | None:
    """Plays a trace as `play_trace` does; answers the failure if there is one."""
    return play_trace(target, trace, profile).failure


class Retry(NamedTuple):
    """Why a driver runs again whose call was cut off, and whether it then runs in this process."""

    why: str
    in_process: bool = False


# What a first call may take that imports or compiles something, in limits of a step.
PATIENCE = 3


def _hangs_no_more(target: Target, trace: Trace, profile: Profile) -> Retry | None:
    """Why a call that was cut off is not the target's fault; None if it is, or if none was cut off."""
    if trace.law != TERMINATION.id:
        return None
    patient = replace(profile, step_seconds=PATIENCE * profile.step_seconds)
    if replay_trace(target, trace, patient) is None:
        if supervises(target) and not ends_processes(trace):
            # Every child is new, and pays for its first call again, until this process has paid for it.
            _play_here(target, trace, patient)
        return Retry("did when repeated with more time")
    if not supervises(target) or ends_processes(trace):
        return None
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    # A forked child has none of its parent's threads: what waits for one of them hangs there and nowhere else.
    if threads and _play_here(target, trace, profile) is None:
        return Retry(f"did beside the threads of this process: {', '.join(threads)}", in_process=True)
    return None


def _play_here(target: Target, trace: Trace, profile: Profile) -> Trace | None:
    watchdog = Watchdog(profile.step_seconds)
    with watchdog.watching():
        return run_ops(model_of(target.contract), target.factory, trace.scope, trace.ops, watchdog)


def shrink_failure(target: Target, trace: Trace, profile: Profile) -> Trace:
    """The failure made short, under supervision where that is possible."""
    model_type = model_of(target.contract)
    if supervises(target):
        return shrink_model(model_type, target.factory, trace, profile)
    watchdog = Watchdog(profile.step_seconds)
    budget = profile.shrink_steps, profile.shrink_limit
    with watchdog.watching():
        return shrink(model_type, target.factory, trace, watchdog, *budget)


def shrink_model(model_type: type[Model[Any]], factory: Factory, trace: Trace, profile: Profile) -> Trace:
    """The failure of a model made short: in one child, or in a child for each attempt if attempts end or hang it."""

    def attempts(watchdog: Watchdog, run: RunOps = run_ops) -> Trace:
        return shrink(model_type, factory, trace, watchdog, profile.shrink_steps, profile.shrink_limit, run)

    if not ends_processes(trace):
        with suppress(ChildLost):
            return in_child(attempts, profile.step_seconds)
    watchdog = Watchdog(profile.step_seconds)
    return with_answers(model_type, factory, attempts(watchdog, run_ops_supervised), watchdog)


def _run_driver(name: str, target: Target, profile: Profile, seed: int, emit: Emit, in_process: bool) -> Outcome:
    def progress(steps: int) -> None:
        emit(Event("progress", target.contract, target.name, name, steps))

    def work(model_type: type[Model[Any]], watchdog: SharedWatchdog) -> Outcome:
        return _drive(name, model_type, target.factory, profile, seed, watchdog, watchdog.report)

    if in_process or not supervises(target):
        with doing(RUNNING, f"{name} on {target.contract} {target.name}"):
            return drive(name, target, profile, seed, progress)
    return supervised(name, model_of(target.contract), work, profile.step_seconds, progress)


def explore_scope(
    target: Target,
    scope: Scope,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    max_depth: int | None = None,
    progress: Callable[[int], None] | None = None,
    step_seconds: float = 5.0,
) -> Outcome:
    """Explores one scope under supervision."""

    def work(model_type: type[Model[Any]], watchdog: Watchdog, tell: Callable[[int], None] | None) -> Outcome:
        return explore(
            model_type,
            target.factory,
            scope,
            watchdog=watchdog,
            steps=steps,
            seconds=seconds,
            max_depth=max_depth,
            progress=tell,
        )

    model_type = model_of(target.contract)
    if supervises(target):
        return supervised("explore", model_type, lambda m, w: work(m, w, w.report), step_seconds, progress)
    with Watchdog(step_seconds).watching() as watchdog:
        return work(model_type, watchdog, progress)


def drive(
    name: str, target: Target, profile: Profile, seed: int, progress: Callable[[int], None] | None = None
) -> Outcome:
    """One driver on one target in this process, within the budget of the profile; the failure is not shrunk."""
    with Watchdog(profile.step_seconds).watching() as watchdog:
        return _drive(name, model_of(target.contract), target.factory, profile, seed, watchdog, progress)


def _drive(
    name: str,
    model_type: type[Model[Any]],
    factory: Factory,
    profile: Profile,
    seed: int,
    watchdog: Watchdog,
    progress: Callable[[int], None] | None,
) -> Outcome:
    if name == "explore":
        return explore_all(
            model_type,
            factory,
            model_type.small_scopes,
            watchdog=watchdog,
            steps=profile.explore_steps,
            seconds=profile.explore_limit,
            progress=progress,
        )
    if name == "hypothesis":
        examples, steps = profile.examples, profile.steps_per_example
        return hypothesis_run(model_type, factory, seed=seed, watchdog=watchdog, examples=examples, steps=steps)
    if name == "random":
        steps = profile.random_steps
        return random_walk(model_type, factory, seed=seed, watchdog=watchdog, steps=steps, progress=progress)
    raise UsageError(f"unknown driver {name!r}; known: {', '.join(DRIVERS)}")


__all__ = ["VIOLATED", "CheckFailed", "Event", "check", "check_target", "replay_trace", "shrink_failure"]
