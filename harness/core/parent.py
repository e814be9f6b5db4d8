"""The process that waits for a command's own process, and whose exit code a shell or a CI job sees.

A target's code may end the process that runs it. Drivers run targets in children of their own. Other code of a target
(its import, a comparison, a benchmark, a driver on a device that no forked child can use) can end the command's
process. Then this process says so: without the last word of the command no exit code is a success. If the command took
notes of an episode, this process saves its trace.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from kvlockstep.core.errors import UsageError
from kvlockstep.core.failure_page import failure_page, save_found
from kvlockstep.core.isolation import ChildLost, die_with, how_it_died
from kvlockstep.core.notes import EpisodeNotes, lost_trace
from kvlockstep.core.system import signals_held
from kvlockstep.models.registry import model_of

FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
# The exit code by what the process was doing when it ended: a target's import is usage, a target's call a violation.
LOST, IMPORTING, RUNNING = 4, "importing", "running"
EXIT_CODE_OF = {IMPORTING: 2, RUNNING: 1}
# The first byte of the shared page is the last word and its successor the exit code; the activity follows.
SAID, CODE, ACTIVITY = 0, 1, 2
_page: mmap.mmap | None = None


@dataclass(frozen=True)
class NotedRun:
    """The header of the trace that the parent saves if the target ends the process, and the directory for it."""

    contract: str
    target: str
    driver: str
    seed: int
    directory: str


@dataclass(frozen=True)
class _Shared:
    """Memory of the command and its parent: the episode that is being played, and which run it is of."""

    episode: EpisodeNotes
    run: EpisodeNotes


_shared: _Shared | None = None


def waited_for(command: Callable[[], int]) -> int:
    """Runs the command in a child, forwards signals to it, and returns its exit code.

    A child that ended without having returned from `command` is an error whatever its exit code: 2 while a target was
    imported, 1 while one was running, else 4. One that a forwarded signal ended gives 128 plus its number, as a shell
    does.
    """
    global _page, _shared  # noqa: PLW0603
    _page = mmap.mmap(-1, mmap.PAGESIZE)
    _shared = _Shared(EpisodeNotes(), EpisodeNotes(size=mmap.PAGESIZE))
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    me = os.getpid()
    with signals_held():
        child = os.fork()
        sent = _forwarding(child) if child else set()
    if child == 0:
        # A group of its own: what a terminal sends reaches this process only once, from its parent.
        os.setpgid(0, 0)
        die_with(me)
        code = command()
        _page[CODE], _page[SAID] = code & 0xFF, 1
        return code
    _, status = os.waitpid(child, 0)
    # What the target has forked in the command's own process and left running.
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    if _page[SAID]:
        return _page[CODE]
    exit_code = os.waitstatus_to_exitcode(status)
    if exit_code < 0 and -exit_code in sent:
        return 128 - exit_code
    activity = _page[ACTIVITY:].split(b"\0", 1)[0].decode(errors="replace")
    during = f" while {activity}" if activity else ""
    print(f"kvlockstep: {how_it_died(exit_code)}{during}, without a result", file=sys.stderr)
    _save_lost_trace(_shared, how_it_died(exit_code))
    return EXIT_CODE_OF.get(activity.partition(" ")[0], LOST)


def _save_lost_trace(shared: _Shared, how: str) -> None:
    """Saves the trace of the noted run that the target ended, and prints its page; does nothing if none was noted."""
    if not (noted := shared.run.values()):
        return
    run = NotedRun(**json.loads(noted[0]))
    model_type = model_of(run.contract)
    if (played := shared.episode.read(model_type)) is None:
        return
    trace = lost_trace(model_type, *played, ChildLost(how, hung=False))
    # Each attempt to shrink it would end a process that has the device.
    trace = trace.but(target=run.target, driver=run.driver, seed=run.seed, unfinished=True)
    try:
        print(failure_page(trace, save_found(trace, Path(run.directory))), file=sys.stderr)
    except UsageError as error:
        print(f"{error.found}\nkvlockstep: {error.message}", file=sys.stderr)


@contextlib.contextmanager
def noting_for_parent(run: NotedRun) -> Iterator[EpisodeNotes | None]:
    """Yields notes from which the parent saves the trace of the episode, if the target ends this process.

    Yields None if no parent waits, as under a debugger or when check() is called from Python.
    """
    if _shared is None:
        yield None
        return
    _shared.episode.clear()
    _shared.run.clear()
    _shared.run.add(json.dumps(asdict(run)))
    try:
        yield _shared.episode
    finally:
        _shared.run.clear()


def _forwarding(child: int) -> set[int]:
    """Has signals go to the child; returns the set in which those sent are noted."""
    sent: set[int] = set()

    def forward(number: int, _frame: FrameType | None) -> None:
        sent.add(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    def pause(_number: int, _frame: FrameType | None) -> None:
        os.kill(child, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(child, signal.SIGCONT)

    for name in FORWARDED:
        signal.signal(getattr(signal, name), forward)
    signal.signal(signal.SIGTSTP, pause)
    return sent


@contextlib.contextmanager
def doing(kind: str, what: str) -> Iterator[None]:
    """Tells the parent what this process does, IMPORTING or RUNNING something, in case it ends there."""
    activity = f"{kind} {what}"
    if _page is None:
        yield
        return
    room = len(_page) - ACTIVITY
    _page[ACTIVITY:] = activity.encode()[: room - 1].ljust(room, b"\0")
    try:
        yield
    finally:
        _page[ACTIVITY] = 0
