"""Runs code that a target may end, hang or crash in a child process, and reports how it ended.

The child counts its steps into shared memory whenever its watchdog ticks; the parent only waits. When the count stands
still for too long the parent kills the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import IO, Any, TypeVar

from kvlockstep import models, properties
from kvlockstep.core import system
from kvlockstep.core.capture import Capture, new_capture
from kvlockstep.core.system import ENDS_WITH_PARENT, FORK
from kvlockstep.core.watchdog import Watchdog

R = TypeVar("R")

POLL_SECONDS = 0.05
# What faulthandler is given to write where a child stood that is killed.
LAST_WORDS_SECONDS = 0.2
# What a driver may take before it makes its first target: Hypothesis's start takes a second on a busy machine.
START_SECONDS = 10.0
PR_SET_PDEATHSIG = 1
HARNESS = str(Path(__file__).parents[1])
# How faulthandler's lines begin for our own code.
OURS = tuple(f'  File "{folder}{os.sep}' for folder in (HARNESS, *models.__path__, *properties.__path__))


class ChildLost(Exception):
    """The child hung (`hung`) or ended without its answer.

    `reason` is a sentence; `details` show its stack; `printed` are the last lines that it printed.
    """

    def __init__(self, reason: str, hung: bool, details: tuple[str, ...] = (), printed: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hung = hung
        self.details = details
        self.printed = printed

    def __reduce__(self) -> tuple[type[ChildLost], tuple[Any, ...], dict[str, Any]]:
        return type(self), (self.reason, self.hung), self.__dict__


class SharedWatchdog(Watchdog):
    """A watchdog whose count the parent process can see, in the first of the `shared` numbers."""

    def __init__(self, limit: float, shared: Any) -> None:
        super().__init__(limit)
        self._shared = shared

    def look(self, number: int, frame: Any) -> None:
        self._shared[0] = self.beat
        super().look(number, frame)

    def report(self, steps: int) -> None:
        """Tells the parent how many steps are done."""
        self._shared[1] = steps


def in_child(
    work: Callable[[SharedWatchdog], R],
    step_seconds: float,
    progress: Callable[[int], None] | None = None,
    began: Callable[[], bool] = lambda: True,
) -> R:
    """Returns `work(watchdog)` as computed in a forked child. Raises ChildLost, or what `work` raised.

    `progress` is called with the count of the child's watchdog. Until `began` says that the target is called, the child
    may take START_SECONDS, if that is more than its steps may take. Interrupts are for the parent: the child ignores
    them. What the child prints is captured, see core/capture.py. Where nothing can fork, `work` runs in this process,
    and whatever ends it ends this process.
    """
    if not system.CAN_FORK:
        own = SharedWatchdog(step_seconds, [0, 0])
        with own.watching():
            return work(own)
    shared = FORK.RawArray("Q", 2)
    receive, send = FORK.Pipe(duplex=False)
    with tempfile.TemporaryFile("w+") as last_words, new_capture() as capture:
        arguments = (work, step_seconds, shared, send, last_words, capture, os.getpid())
        child = system.start_forked(_serve, arguments)
        send.close()
        try:
            answer = _await(receive, child, shared, step_seconds, last_words, progress, began)
        except ChildLost as lost:
            lost.printed = capture.lines()
            raise
        finally:
            _end(child)
            receive.close()
    if isinstance(answer, BaseException):
        raise answer
    result: R = answer
    return result


def _serve(
    work: Callable[[SharedWatchdog], Any],
    step_seconds: float,
    shared: Any,
    send: Connection,
    last_words: IO[str],
    capture: Capture,
    parent: int,
) -> None:
    # A group of its own, so that whatever the target starts ends with it.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    system.let_signals_in()
    die_with(parent)
    faulthandler.enable(last_words, all_threads=False)
    capture.begin()
    _one_thread()
    me = os.getpid()
    watchdog = SharedWatchdog(step_seconds, shared)
    answer: Any
    try:
        with watchdog.watching():
            answer = work(watchdog)
    except BaseException as error:
        error.add_note(f"raised in a child process:\n{traceback.format_exc()}")
        answer = error
    if os.getpid() != me:
        # The target forked, and this is its child: one answer is enough.
        os._exit(0)
    # The parent kills this process as soon as it has the answer.
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(Exception):
            stream.flush()
    send.send_bytes(pickled(answer))


def pickled(answer: Any) -> bytes:
    """A result for the parent process. An exception that cannot be unpickled there goes as its text."""
    try:
        data = bytes(ForkingPickler.dumps(answer))
        if isinstance(answer, BaseException):
            ForkingPickler.loads(data)
    except Exception:
        if not isinstance(answer, BaseException):
            raise
        data = bytes(ForkingPickler.dumps(RuntimeError("".join(traceback.format_exception(answer)))))
    return data


def _one_thread() -> None:
    """OpenMP's threads are not there after a fork, and a parallel region that waits for them waits for ever."""
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _await(
    receive: Connection,
    child: Any,
    shared: Any,
    step_seconds: float,
    last_words: IO[str],
    progress: Callable[[int], None] | None,
    began: Callable[[], bool],
) -> Any:
    limit = 2 * step_seconds
    seen, since, told = (-1, False), _clock(child.pid), 0
    while not receive.poll(POLL_SECONDS):
        if not child.is_alive() and not receive.poll(0):
            raise _died(child, last_words)
        # The time that the child takes for its first step is counted from when the target is called.
        state = shared[0], began()
        if state != seen:
            seen, since = state, _clock(child.pid)
        elif _clock(child.pid) - since > (limit if seen[1] else max(limit, START_SECONDS)) and child.is_alive():
            raise _hung(child, limit, last_words)
        if progress is not None and shared[1] != told:
            told = shared[1]
            progress(told)
    try:
        return receive.recv()
    except EOFError:
        child.join()
        raise _died(child, last_words) from None


def _clock(pid: int) -> float:
    """Seconds that stand still while the process waits for a core."""
    return time.monotonic() - system.seconds_without_a_core(pid)


def _died(child: Any, last_words: IO[str]) -> ChildLost:
    return ChildLost(how_it_died(child.exitcode), hung=False, details=_said(last_words))


def _hung(child: Any, seconds: float, last_words: IO[str]) -> ChildLost | RuntimeError:
    with contextlib.suppress(OSError):
        os.kill(child.pid, signal.SIGABRT)
    child.join(LAST_WORDS_SECONDS)
    said = tuple(line for line in _said(last_words) if not line.startswith("Fatal Python error"))
    if _is_ours(said):
        return RuntimeError("\n".join([f"no step for {seconds:g} s, and the target was not called:", *said]))
    return ChildLost(f"no step for {seconds:g} s, and no reaction to a signal", hung=True, details=said)


def _is_ours(stack: Sequence[str]) -> bool:
    """Tells whether a stack, innermost frame first, begins in the harness or the judges and has no call of the target.

    Such a call ends the stack that `_said` returns, and faulthandler writes a hundred frames at most: only a stack that
    goes back to the beginning of the child tells.
    """
    frames = [line for line in stack if line.startswith("  File ")]
    begins = any(line.endswith(f" in {_serve.__name__}") for line in frames)
    return begins and frames[0].startswith(OURS)


def _said(last_words: IO[str]) -> tuple[str, ...]:
    """faulthandler's text, without what differs from run to run, and without the frames of the harness."""
    last_words.seek(0)
    lines = [line.rstrip() for line in last_words.read().splitlines() if line.strip()]
    lines = [re.sub(r"[Tt]hread 0x[0-9a-f]+( \[[^]]*\])? ", "thread ", line) for line in lines]
    ours = next((n for n, line in enumerate(lines) if re.search(r"in (enter_target|attempt)$", line)), len(lines))
    return tuple(line for line in lines[:ours] if not line.startswith("Extension modules"))


def _end(child: Any) -> None:
    """Ends the child and what it has left running."""
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.join()


def die_with(parent: int) -> None:
    """Has the kernel end this process when its parent is gone, however that ended; does nothing but on Linux."""
    if ENDS_WITH_PARENT:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def how_it_died(exit_code: int | None) -> str:
    """The end of a process in words."""
    if exit_code is not None and exit_code < 0:
        known = {s.value: s.name for s in signal.Signals}
        return f"the process died of {known.get(-exit_code, f'signal {-exit_code}')}"
    return f"the process ended with exit code {exit_code}"
