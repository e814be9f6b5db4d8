"""Drivers, traces and shrinking in a child process: a target that hangs or dies there becomes a violation.

The child notes each operation in memory that it shares with the parent, which makes the trace of the notes when the
child is lost. `kvlockstep bench drivers` measures what the notes cost.
"""

from __future__ import annotations

import io
import json
import marshal
import mmap
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kvlockstep.core import system
from kvlockstep.core.isolation import ChildLost, SharedWatchdog, in_child
from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Outcome, Replayed, play_ops
from kvlockstep.models.core.model import Factory, Model, Scope
from kvlockstep.models.core.op import NotEnabled, Op
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION
from kvlockstep.targets.registry import CPU, Target

M = TypeVar("M", bound=type[Model[Any]])


class Journal:
    """The scope and the operations of the current episode, in memory that is shared with children forked later.

    What does not fit into `size` bytes is left out: then the trace ends before the operation that ended the process.
    Pages are taken from the system as they are written.
    """

    def __init__(self, size: int = 16 << 20) -> None:
        self.notes = mmap.mmap(-1, size)
        # The number of bytes that are noted, in memory of its own so that a note is complete before it counts.
        self.end = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    def begin(self, scope: Scope) -> None:
        """A new episode."""
        self.end[0] = 0
        self.add(json.dumps(scope.to_json()))

    def add(self, value: Any) -> None:
        """Notes a value behind those before it. marshal is the fastest writer of plain values; it delimits itself."""
        data = marshal.dumps(value)
        start = self.end[0]
        stop = start + len(data)
        if stop <= len(self.notes):
            self.notes[start:stop] = data
            self.end[0] = stop

    def read(self, model_type: type[Model[Any]]) -> tuple[Scope, tuple[Op, ...]] | None:
        """The episode as far as it got; None if none began."""
        end = self.end[0]
        noted = io.BytesIO(self.notes[:end])
        values = []
        while noted.tell() < end:
            values.append(marshal.load(noted))
        if not values:
            return None
        scope = model_type.scope_type.from_json(json.loads(values[0]))
        return scope, tuple(Op(name, **args) for name, args in values[1:])


def journaled(model_type: M, journal: Journal) -> M:
    """The model, noting each operation before it is tried."""
    end, add = journal.end, journal.add

    class Journaled(model_type):  # type: ignore[misc,valid-type]
        def __init__(self, scope: Scope, factory: Factory) -> None:
            journal.begin(scope)
            super().__init__(scope, factory)

        def step(self, op: Op) -> Any:
            before = end[0]
            add((op.name, op.args))
            try:
                return step(self, op)
            except NotEnabled:
                end[0] = before
                raise

        def redo(self, op: Op) -> None:
            add((op.name, op.args))
            redo(self, op)

    step, redo = model_type.step, model_type.redo
    return Journaled  # type: ignore[return-value]


def supervises(target: Target) -> bool:
    """Whether the target can run in a child: a forked child cannot use the device of its parent."""
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
    journal = Journal()
    noted = journaled(model_type, journal)
    try:
        return in_child(lambda watchdog: drive(noted, watchdog), step_seconds, progress)
    except ChildLost as lost:
        played = journal.read(model_type)
        if played is None:
            raise
        trace = lost_trace(model_type, *played, lost).but(driver=driver)
        return Outcome(driver, steps=len(trace.ops), failure=trace)


def play_ops_supervised(
    model_type: type[Model[Any]], factory: Factory, scope: Scope, ops: Sequence[Op], watchdog: Watchdog
) -> Replayed:
    """drivers.episode.play_ops in a child. A child that hangs or dies fails at the operation that it was trying."""
    journal = Journal()
    noted = journaled(model_type, journal)
    try:
        return in_child(lambda w: play_ops(noted, factory, scope, ops, w), watchdog.limit)
    except ChildLost as lost:
        played = journal.read(model_type)
        return Replayed(lost_trace(model_type, *(played or (scope, tuple(ops))), lost))


def run_ops_supervised(
    model_type: type[Model[Any]], factory: Factory, scope: Scope, ops: Sequence[Op], watchdog: Watchdog
) -> Trace | None:
    """The failing trace that `play_ops_supervised` comes to, or None if all laws held."""
    return play_ops_supervised(model_type, factory, scope, ops, watchdog).failure


def lost_trace(model_type: type[Model[Any]], scope: Scope, ops: tuple[Op, ...], lost: ChildLost) -> Trace:
    """The trace of an episode that ended or hung its process at the last operation; it has no answers."""
    law = TERMINATION.id if lost.hung else ERROR_CONTRACT.id
    return Trace(
        model_type.contract, scope, ops, (), law=law, message=lost.reason, details=lost.details, original=len(ops)
    )


def ends_processes(trace: Trace) -> bool:
    """Whether a child had to be lost to see the failure."""
    return trace.message.startswith(("the process ", "no step for "))


def with_answers(model_type: type[Model[Any]], factory: Factory, trace: Trace, watchdog: Watchdog) -> Trace:
    """The trace of a lost child with the answers before its last operation, which that child took with it."""
    before = play_ops_supervised(model_type, factory, trace.scope, trace.ops[:-1], watchdog)
    if before.failure is not None or before.skipped:
        return trace
    return trace.but(answers=before.answers)
