"""`check`: saved failures, then exhaustive exploration, then Hypothesis, then random episodes, on one target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvlockstep.config import Config
from kvlockstep.drivers.episode import Outcome, Replayed, common, missed_goals, play_ops, unapplied
from kvlockstep.drivers.explore import explore
from kvlockstep.drivers.random_walk import random_walk
from kvlockstep.drivers.shrink import shrink
from kvlockstep.drivers.stateful import hypothesis_run
from kvlockstep.errors import UsageError
from kvlockstep.files import require_writable
from kvlockstep.isolation import isolated, play_ops_isolated, run_ops_isolated
from kvlockstep.models.model import Factory, Model
from kvlockstep.models.op import Unplayable
from kvlockstep.models.registry import model_of
from kvlockstep.profiles import Profile, profile_of
from kvlockstep.properties.law import TERMINATION
from kvlockstep.report import INCONCLUSIVE, VIOLATED, Report, Run, TargetReport, run_of
from kvlockstep.saved_traces import named_by_us, traces_for
from kvlockstep.targets import CPU, Target, from_factory
from kvlockstep.trace import Trace, place_of, save_trace
from kvlockstep.watchdog import Watchdog

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
) -> TargetReport:
    """All drivers on one target, stopping at the first violation. `drivers` leaves some out."""
    report = TargetReport(target.contract, target.name)
    model_type = model_of(target.contract)
    replay_saved(target, directory, profile, report, emit)
    reach: Counter[str] = Counter()
    unreachable: set[str] | None = None
    for name in drivers:
        if report.failures:
            break
        emit(Event("begin", target.contract, target.name, name))
        outcome = _run_driver(name, model_type, target, profile, seed, directory, emit)
        if outcome.failure is not None and _slow_for_once(target, outcome.failure, profile):
            text = f"{name} runs again: {outcome.failure.message}, but did when repeated"
            report.notes.append(text)
            emit(Event("note", target.contract, target.name, name, text=text))
            outcome = _run_driver(name, model_type, target, profile, seed, directory, emit)
        if outcome.unsteady:
            text = f"{name}: {target.name} did not do the same again, {outcome.unsteady} times"
            report.notes.append(text)
            emit(Event("note", target.contract, target.name, name, text=text))
        path = None
        if outcome.failure is not None:
            outcome.failure = shrink_failure(target, outcome.failure.but(target=target.name), profile)
            path = save_trace(outcome.failure, directory)
        run = run_of(target.contract, target.name, outcome, path)
        report.runs.append(run)
        reach += outcome.reach
        unreachable = common(unreachable, outcome.unreachable)
        report.facts = report.facts or outcome.facts
        report.not_checked = outcome.not_checked or report.not_checked
        emit(Event("end", target.contract, target.name, name, run.steps, run))
    report.missed = missed_goals(model_type, reach, unreachable)
    if report.failures:
        report.missed = ()
    elif report.missed and report.runs:
        report.runs[-1].verdict = INCONCLUSIVE
    return report


def replay_saved(target: Target, directory: Path, profile: Profile, report: TargetReport, emit: Emit) -> None:
    """Replays the traces in the directory that are for this target.

    One that a check left and that no longer fails is FIXED and goes. One that says nothing about the target any more,
    since not all of it applies, stays, and leaves the check inconclusive.
    """

    def note(text: str) -> None:
        report.notes.append(text)
        emit(Event("note", target.contract, target.name, "replay", text=text))

    if not directory.is_dir():
        return
    traces, skipped = traces_for(target.contract, target.name, directory)
    for text in skipped:
        note(text)
    for path, trace in traces:
        emit(Event("begin", target.contract, target.name, "replay"))
        again = play_trace(target, trace, profile, path)
        outcome = Outcome("replay", steps=len(trace.ops))
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
    """Plays a trace in a child, since it may take its process with it.

    A target on a device plays in this process, whose device a forked child could not use. Raises UsageError, naming
    `path` and the line, for an operation that cannot be played on any target.
    """
    watchdog = Watchdog(profile.step_seconds)
    arguments = model_of(target.contract), target.factory, trace.scope, trace.ops, watchdog
    try:
        if target.device == CPU:
            return play_ops_isolated(*arguments)
        with watchdog.watching():
            return play_ops(*arguments)
    except Unplayable as error:
        if path is None:
            raise
        raise UsageError(f"{place_of(path, error.number)}: malformed trace: {error.reason}") from error


def replay_trace(target: Target, trace: Trace, profile: Profile) -> Trace | None:
    """Plays a trace as `play_trace` does; answers the failure if there is one."""
    return play_trace(target, trace, profile).failure


def _slow_for_once(target: Target, trace: Trace, profile: Profile) -> bool:
    """Whether a call was cut off that returns when repeated: on a busy machine, or where it built something."""
    return trace.law == TERMINATION.id and replay_trace(target, trace, profile) is None


def shrink_failure(target: Target, trace: Trace, profile: Profile) -> Trace:
    """The failure made short, in children if the profile isolates drivers."""
    model_type, watchdog = model_of(target.contract), Watchdog(profile.step_seconds)
    if profile.isolate and target.device == CPU:
        return shrink(model_type, target.factory, trace, watchdog, profile.shrink_seconds, run_ops_isolated)
    with watchdog.watching():
        return shrink(model_type, target.factory, trace, watchdog, profile.shrink_seconds)


def _run_driver(
    name: str, model_type: type[Model[Any]], target: Target, profile: Profile, seed: int, directory: Path, emit: Emit
) -> Outcome:
    def progress(steps: int) -> None:
        emit(Event("progress", target.contract, target.name, name, steps))

    if not profile.isolate or target.device != CPU:  # a forked child cannot use the device of its parent
        return drive(name, target, profile, seed, progress)

    def work(_model_type: type[Model[Any]], watchdog: Watchdog) -> Outcome:
        return _drive(name, target, profile, seed, watchdog, progress)

    require_writable(directory)
    return isolated(name, model_type, work, profile.step_seconds, directory / f".journal-{target.contract}-{name}")


def drive(
    name: str, target: Target, profile: Profile, seed: int, progress: Callable[[int], None] | None = None
) -> Outcome:
    """One driver on one target in this process, within the budget of the profile; the failure is not shrunk."""
    with Watchdog(profile.step_seconds).watching() as watchdog:
        return _drive(name, target, profile, seed, watchdog, progress)


def _drive(
    name: str,
    target: Target,
    profile: Profile,
    seed: int,
    watchdog: Watchdog,
    progress: Callable[[int], None] | None,
) -> Outcome:
    model_type, factory = model_of(target.contract), target.factory
    if name == "explore":
        return _explore_all(model_type, factory, profile, watchdog, progress)
    if name == "hypothesis":
        examples, steps = profile.examples, profile.steps_per_example
        return hypothesis_run(model_type, factory, seed=seed, watchdog=watchdog, examples=examples, steps=steps)
    if name == "random":
        steps = profile.random_steps
        return random_walk(model_type, factory, seed=seed, watchdog=watchdog, steps=steps, progress=progress)
    raise UsageError(f"unknown driver {name!r}; known: {', '.join(DRIVERS)}")


def _explore_all(
    model_type: type[Model[Any]],
    factory: Factory,
    profile: Profile,
    watchdog: Watchdog,
    progress: Callable[[int], None] | None,
) -> Outcome:
    total = Outcome("explore", exhausted=True)
    left = profile.explore_seconds
    scopes = model_type.small_scopes
    for i, scope in enumerate(scopes):
        share = max(left, 0.0) / (len(scopes) - i)
        done = explore(model_type, factory, scope, watchdog=watchdog, seconds=share, progress=progress)
        left -= done.seconds
        total.steps += done.steps
        total.states += done.states
        total.depth = max(total.depth, done.depth)
        total.seconds += done.seconds
        total.exhausted = bool(total.exhausted and done.exhausted)
        total.unsteady += done.unsteady
        total.reach += done.reach
        total.not_checked = done.not_checked
        total.unreachable = common(total.unreachable, done.unreachable)
        total.facts = total.facts or done.facts
        if done.failure is not None:
            total.failure = done.failure
            break
    return total


__all__ = ["VIOLATED", "CheckFailed", "Event", "check", "check_target", "replay_trace", "shrink_failure"]
