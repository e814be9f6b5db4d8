"""Runs a driver in a child process, so that a target that hangs or dies in compiled code costs one child.

The child counts its steps into shared memory whenever its watchdog ticks. When the count stands still for too long
the parent kills the child; when the child dies or was killed, the same run is repeated with a journal that
holds the operations of the current episode, and the journal becomes the trace.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from kvlockstep.drivers.episode import Outcome, Replayed, play_ops
from kvlockstep.models.model import Factory, Model, Scope
from kvlockstep.models.op import Op
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION
from kvlockstep.trace import Trace
from kvlockstep.watchdog import Watchdog

R = TypeVar("R")

POLL_SECONDS = 0.05
PR_SET_PDEATHSIG = 1
FORK = multiprocessing.get_context("fork")


class ChildLost(Exception):
    """The child hung (`hung`) or died; `reason` is a sentence."""

    def __init__(self, reason: str, hung: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hung = hung


class SharedWatchdog(Watchdog):
    """A watchdog whose count the parent process can see."""

    def __init__(self, limit: float, shared: Any) -> None:
        super().__init__(limit)
        self._shared = shared

    def look(self, number: int, frame: Any) -> None:
        self._shared.value = self.beat
        super().look(number, frame)


def in_child(work: Callable[[Watchdog], R], step_seconds: float) -> R:
    """Answers `work(watchdog)` as computed in a forked child. Raises ChildLost, or what `work` raised."""
    shared = FORK.RawValue("Q", 0)
    receive, send = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_serve, args=(work, step_seconds, shared, send, os.getpid()), daemon=True)
    child.start()
    send.close()
    try:
        answer = _await(receive, child, shared, step_seconds)
    finally:
        child.kill()
        child.join()
    if isinstance(answer, BaseException):
        raise answer
    result: R = answer
    return result


def _serve(work: Callable[[Watchdog], Any], step_seconds: float, shared: Any, send: Connection, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(parent)
    watchdog = SharedWatchdog(step_seconds, shared)
    try:
        with watchdog.watching():
            answer = work(watchdog)
    except BaseException as error:
        answer = error
    send.send(answer)


def _await(receive: Connection, child: Any, shared: Any, step_seconds: float) -> Any:
    seen, since = -1, time.monotonic()
    while not receive.poll(POLL_SECONDS):
        if not child.is_alive() and not receive.poll(0):
            raise ChildLost(how_it_died(child.exitcode), hung=False)
        if shared.value != seen:
            seen, since = shared.value, time.monotonic()
        elif time.monotonic() - since > 2 * step_seconds:
            raise ChildLost(f"no step for {2 * step_seconds:g} s, not even to a signal", hung=True)
    try:
        return receive.recv()
    except EOFError:
        child.join()
        raise ChildLost(how_it_died(child.exitcode), hung=False) from None


def die_with(parent: int) -> None:
    """Has the kernel end this process when its parent is gone, however that ended; does nothing but on Linux."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def how_it_died(exit_code: int | None) -> str:
    """The end of a process in words."""
    if exit_code is not None and exit_code < 0:
        return f"the process died of {signal.Signals(-exit_code).name}"
    return f"the process ended with exit code {exit_code}"


def isolated(
    driver: str,
    model_type: type[Model[Any]],
    drive: Callable[[type[Model[Any]], Watchdog], Outcome],
    step_seconds: float,
    journal: Path,
) -> Outcome:
    """Runs a driver in a child. A child that hangs or dies becomes a violation with the trace that did it."""
    with contextlib.suppress(ChildLost):
        return in_child(lambda watchdog: drive(model_type, watchdog), step_seconds)
    try:
        return in_child(lambda watchdog: drive(_journaled(model_type, journal), watchdog), step_seconds)
    except ChildLost as lost:
        failure = _read_journal(model_type, journal, lost).but(driver=driver)
        return Outcome(driver, steps=len(failure.ops), failure=failure)
    finally:
        journal.unlink(missing_ok=True)


def play_ops_isolated(
    model_type: type[Model[Any]], factory: Factory, scope: Scope, ops: Sequence[Op], watchdog: Watchdog
) -> Replayed:
    """drivers.episode.play_ops in a child; a child that hangs or dies fails at the last of the operations."""
    try:
        return in_child(lambda w: play_ops(model_type, factory, scope, ops, w), watchdog.limit)
    except ChildLost as lost:
        return Replayed(_lost_trace(model_type, scope, tuple(ops), lost))


def run_ops_isolated(
    model_type: type[Model[Any]], factory: Factory, scope: Scope, ops: Sequence[Op], watchdog: Watchdog
) -> Trace | None:
    """The failing trace that `play_ops_isolated` comes to, or None if all laws held."""
    return play_ops_isolated(model_type, factory, scope, ops, watchdog).failure


def _journaled(model_type: type[Model[Any]], path: Path) -> type[Model[Any]]:
    class Journaled(model_type):  # type: ignore[misc,valid-type]
        def __init__(self, scope: Scope, factory: Factory) -> None:
            path.write_text(json.dumps(scope.to_json()) + "\n")
            super().__init__(scope, factory)

        def _note(self, op: Op) -> None:
            with path.open("a") as file:
                file.write(json.dumps({"op": op.name, "args": op.args}) + "\n")

        def step(self, op: Op) -> Any:
            self._note(op)
            return super().step(op)

        def redo(self, op: Op) -> None:
            self._note(op)
            super().redo(op)

    return Journaled


def _read_journal(model_type: type[Model[Any]], path: Path, lost: ChildLost) -> Trace:
    scope, *records = [json.loads(line) for line in path.read_text().splitlines()]
    ops = tuple(Op(record["op"], **record["args"]) for record in records)
    return _lost_trace(model_type, model_type.scope_type.from_json(scope), ops, lost)


def _lost_trace(model_type: type[Model[Any]], scope: Scope, ops: tuple[Op, ...], lost: ChildLost) -> Trace:
    law = TERMINATION.id if lost.hung else ERROR_CONTRACT.id
    return Trace(model_type.contract, scope, ops, (), law=law, message=lost.reason, original=len(ops))
