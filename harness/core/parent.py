"""The process that waits for a command's own process, and whose exit code a shell or a CI job sees.

A target's code may end the process that runs it. Drivers run targets in children of their own; whatever else runs a
target's code (its import, a comparison, a benchmark) ends the command's process, and then this one says so: without
the last word of the command no exit code is a success.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from kvlockstep.core.isolation import die_with, how_it_died

FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
# The exit code by what the process was doing when it ended: a target's import is usage, a target's call a violation.
LOST, IMPORTING, RUNNING = 4, "importing", "running"
EXIT_CODE_OF = {IMPORTING: 2, RUNNING: 1}
# The first byte of the shared page is the last word and its successor the exit code; the activity follows.
SAID, CODE, ACTIVITY = 0, 1, 2
_page: mmap.mmap | None = None


def waited_for(command: Callable[[], int]) -> int:
    """Runs the command in a child, forwards signals to it, and returns its exit code.

    A child that ended without having returned from `command` is an error whatever its exit code: 2 while a target was
    imported, 1 while one was running, else 4. One that a forwarded signal ended gives 128 plus its number, as a shell
    does.
    """
    global _page  # noqa: PLW0603
    _page = mmap.mmap(-1, mmap.PAGESIZE)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    me = os.getpid()
    child = os.fork()
    if child == 0:
        # A group of its own: what a terminal sends reaches this process only once, from its parent.
        os.setpgid(0, 0)
        die_with(me)
        code = command()
        _page[CODE], _page[SAID] = code & 0xFF, 1
        return code
    sent = _forwarding(child)
    _, status = os.waitpid(child, 0)
    if _page[SAID]:
        return _page[CODE]
    exit_code = os.waitstatus_to_exitcode(status)
    if exit_code < 0 and -exit_code in sent:
        return 128 - exit_code
    activity = _page[ACTIVITY:].split(b"\0", 1)[0].decode(errors="replace")
    during = f" while {activity}" if activity else ""
    print(f"kvlockstep: {how_it_died(exit_code)}{during}, without a result", file=sys.stderr)
    return EXIT_CODE_OF.get(activity.partition(" ")[0], LOST)


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
    """In it the parent knows what this process does, IMPORTING or RUNNING something, should it end there."""
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
