"""Drivers, traces and shrinking in a child process: a target that hangs or dies there becomes a violation.

The child notes each operation in memory that it shares with the parent, which makes the trace of the notes when the
child is lost. A note costs about a microsecond; see `kvlockstep bench supervision`.
"""

from __future__ import annotations

import json
import marshal
import mmap
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kvlockstep.drivers.episode import Outcome, run_ops
from kvlockstep.isolation import CAN_FORK, ChildLost, SharedWatchdog, in_child
from kvlockstep.models.model import Factory, Model, Scope
from kvlockstep.models.op import NotEnabled, Op
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION
from kvlockstep.targets import CPU, Target
from kvlockstep.trace import Trace
from kvlockstep.watchdog import Watchdog

M = TypeVar("M", bound=type[Model[Any]])
LENGTH = struct.Struct("<Q")


class Journal:
    """The scope and the operations of the current episode, in memory that is shared with children forked later.

    What does not fit into `size` bytes is left out; the trace then ends before the operation that ended the process.
    Pages are taken from the system as they are written.
    """

    def __init__(self, size: int = 16 << 20) -> None:
        self._memory = mmap.mmap(-1, size)
        self._end = LENGTH.size

    def begin(self, scope: Scope) -> None:
        """A new episode."""
        self._end = LENGTH.size
        self._add(json.dumps(scope.to_json()).encode())

    def note(self, op: Op) -> int:
        """The operation that is tried next; returns the end of the notes before it."""
        before = self._end
        self._add(marshal.dumps((op.name, op.args)))
        return before

    def take_back(self, end: int) -> None:
        """Forgets the notes behind `end`: the operation did not apply."""
        self._end = end
        self._memory[: LENGTH.size] = LENGTH.pack(end)

    def _add(self, data: bytes) -> None:
        end = self._end + LENGTH.size + len(data)
        if end > len(self._memory):
            return
        self._memory[self._end : end] = LENGTH.pack(len(data)) + data
        self._memory[: LENGTH.size] = LENGTH.pack(end)
        self._end = end

    def read(self, model_type: type[Model[Any]]) -> tuple[Scope, tuple[Op, ...]] | None:
        """The episode as far as it got; None if none began."""
        (end,) = LENGTH.unpack(self._memory[: LENGTH.size])
        position, records = LENGTH.size, []
        while position < end:
            (length,) = LENGTH.unpack(self._memory[position : position + LENGTH.size])
            position += LENGTH.size
            records.append(self._memory[position : position + length])
            position += length
        if not records:
            return None
        scope = model_type.scope_type.from_json(json.loads(records[0]))
        return scope, tuple(Op(name, **args) for name, args in map(marshal.loads, records[1:]))


def journaled(model_type: M, journal: Journal) -> M:
    """The model, noting each operation before it is tried."""

    class Journaled(model_type):  # type: ignore[misc,valid-type]
        def __init__(self, scope: Scope, factory: Factory) -> None:
            journal.begin(scope)
            super().__init__(scope, factory)

        def step(self, op: Op) -> Any:
            before = journal.note(op)
            try:
                return super().step(op)
            except NotEnabled:
                journal.take_back(before)
                raise

        def redo(self, op: Op) -> None:
            journal.note(op)
            super().redo(op)

    return Journaled  # type: ignore[return-value]


def supervises(target: Target) -> bool:
    """Whether the target can run in a child: a forked child cannot use the device of its parent."""
    return CAN_FORK and target.device == CPU


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


def run_ops_supervised(
    model_type: type[Model[Any]], factory: Factory, scope: Scope, ops: Sequence[Op], watchdog: Watchdog
) -> Trace | None:
    """drivers.episode.run_ops in a child. A child that hangs or dies fails at the operation that it was trying."""
    journal = Journal()
    noted = journaled(model_type, journal)
    try:
        return in_child(lambda w: run_ops(noted, factory, scope, ops, w), watchdog.limit)
    except ChildLost as lost:
        played = journal.read(model_type)
        return lost_trace(model_type, *(played or (scope, tuple(ops))), lost)


def lost_trace(model_type: type[Model[Any]], scope: Scope, ops: tuple[Op, ...], lost: ChildLost) -> Trace:
    """The trace of an episode that ended or hung its process at the last operation; it has no answers."""
    law = TERMINATION.id if lost.hung else ERROR_CONTRACT.id
    return Trace(
        model_type.contract, scope, ops, (), law=law, message=lost.reason, details=lost.details, original=len(ops)
    )


def ends_processes(trace: Trace) -> bool:
    """Whether a child had to be lost to see the failure; such a trace has no answers."""
    return not trace.answers and trace.message.startswith(("the process ", "no step for "))
