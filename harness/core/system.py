"""Features of the operating system, and what kvlockstep does without them.

The rest of the package asks here. Linux and macOS have everything but the last; Windows has nothing of it.

| needed | for | without it |
|---|---|---|
| fork | a target in a child, which may exit, crash or hang | the target runs in the command's own process |
| fork | workers of `fuzz` and `score` | these commands end with a usage error |
| fork | workers of `check`, one for each core | it checks one target after the other |
| setitimer, SIGALRM | a limit on the time of a call | a call that hangs hangs the command |
| prctl (Linux) | children that end with a parent that was killed | they end at their next answer |
| flock | one run at a time in a campaign's directory | campaigns need fork in any case |
| getrusage | the memory of `replay` on a request trace | it is shown as 0 |
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvlockstep.core.errors import UsageError

CAN_FORK = hasattr(os, "fork") and "fork" in multiprocessing.get_all_start_methods()
CAN_LIMIT_TIME = hasattr(signal, "setitimer")
ENDS_WITH_PARENT = sys.platform == "linux"


class NoFork:
    """Stands where the context of forked processes would, and raises UsageError when it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(
            "this command needs processes that fork, which Linux and macOS have and this system does not: "
            "use check, explore or replay, which then run the target in their own process"
        )


# A forked child inherits the factory, which may be anything; other start methods would have to pickle it.
FORK: Any = multiprocessing.get_context("fork") if CAN_FORK else NoFork()


def unprotected() -> str:
    """Says in one sentence what a check on this system cannot do; "" if it can do everything."""
    lacks = []
    if not CAN_FORK:
        lacks.append("a target that exits or crashes ends the check without a trace")
    if not CAN_LIMIT_TIME:
        lacks.append("a call that does not return hangs it")
    return f"on this system targets run in the process of the check: {', and '.join(lacks)}" if lacks else ""


def module_or_none(name: str) -> Any:
    """A module of the standard library that not every system has."""
    with contextlib.suppress(ImportError):
        return importlib.import_module(name)
    return None


def peak_megabytes() -> float:
    """The most memory that this process has had so far; 0.0 where it is not known."""
    resource = module_or_none("resource")
    if resource is None:
        return 0.0
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


# Signals by which a terminal, a shell or a CI job ends a command.
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name))


@contextmanager
def signals_held() -> Iterator[None]:
    """Holds back the signals that end a command until the block ends. A process forked in it starts with them held.

    Around a fork Python runs the hooks that modules have registered, and an interrupt in a hook is printed and lost.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def start_forked(work: Any, arguments: tuple[Any, ...]) -> Any:
    """Starts a process that calls `work`, which has to `let_signals_in`. Returns the process."""
    process = FORK.Process(target=work, args=arguments)
    with warnings.catch_warnings(), signals_held():
        # Python 3.12 warns of forks beside threads. The child runs no code of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


def let_signals_in() -> None:
    """Lets through the signals that a forked child starts with held."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seconds_without_a_core(pid: int | None = None) -> float:
    """The time that a process, by default this thread, was ready to run and had no core; 0.0 where it is not known.

    Linux keeps it as the second number, in nanoseconds, of /proc/PID/schedstat.
    """
    try:
        with open(f"/proc/{pid or 'thread-self'}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
