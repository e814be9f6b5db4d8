"""Drivers, traces and shrinking in a child process: a target that hangs or dies there becomes a violation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from kvlockstep.core import system
from kvlockstep.core.capture import printing
from kvlockstep.core.isolation import ChildLost, SharedWatchdog, in_child
from kvlockstep.core.notes import EpisodeNotes, lost_trace, noting
from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Outcome, Replayed, play_ops
from kvlockstep.models.core.model import Factory, Model, Scope
from kvlockstep.models.core.op import Op
from kvlockstep.targets.registry import CPU, Target


def supervises(target: Target) -> bool:
    """Tells whether the target can run in a child: a forked child cannot use the device of its parent."""
    return system.CAN_FORK and target.device == CPU


def supervised(
    driver: str,
    model_type: type[Model[Any]],
    drive: Callable[[type[Model[Any]], SharedWatchdog], Outcome],
    step_seconds: float,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Runs a driver in a child. A child that hangs or dies becomes a violation with the trace that did it.

    Raises ChildLost if the child was lost before the target was first called.
    """
    notes = EpisodeNotes()
    noted = noting(model_type, notes)
    began = time.perf_counter()
    try:
        return in_child(lambda watchdog: drive(noted, watchdog), step_seconds, progress, notes.began)
    except ChildLost as lost:
        played = notes.read(model_type)
        if played is None:
            raise
        trace = lost_trace(model_type, *played, lost).but(driver=driver)
        return Outcome(driver, steps=len(trace.ops), seconds=time.perf_counter() - began, failure=trace)


def play_ops_supervised(
    model_type: type[Model[Any]], factory: Factory, scope: Scope, ops: Sequence[Op], watchdog: Watchdog
) -> Replayed:
    """drivers.episode.play_ops in a child. A child that hangs or dies fails at the operation that it was trying."""
    notes = EpisodeNotes()
    noted = noting(model_type, notes)
    try:
        return in_child(lambda w: play_ops(printing(noted), factory, scope, ops, w), watchdog.limit, began=notes.began)
    except ChildLost as lost:
        played = notes.read(model_type)
        return Replayed(lost_trace(model_type, *(played or (scope, tuple(ops))), lost))


def run_ops_supervised(
    model_type: type[Model[Any]], factory: Factory, scope: Scope, ops: Sequence[Op], watchdog: Watchdog
) -> Trace | None:
    """The failing trace that `play_ops_supervised` comes to, or None if all laws held."""
    return play_ops_supervised(model_type, factory, scope, ops, watchdog).failure


def ends_processes(trace: Trace) -> bool:
    """Tells whether a child had to be lost to see the failure."""
    return trace.message.startswith(("the process ", "no step for "))


def with_answers(model_type: type[Model[Any]], factory: Factory, trace: Trace, watchdog: Watchdog) -> Trace:
    """The trace of a lost child with the answers before its last operation, which were lost with the child."""
    before = play_ops_supervised(model_type, factory, trace.scope, trace.ops[:-1], watchdog)
    if before.failure is not None or before.skipped:
        return trace
    return trace.but(answers=before.answers)
