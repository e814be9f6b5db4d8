"""Calls in forked processes, several at the same time."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TypeVar

from kvlockstep.core.isolation import die_with, how_it_died, pickled
from kvlockstep.core.system import FORK, let_signals_in, signals_held

R = TypeVar("R")
Say = Callable[[Any], None]

# What a worker may take to end the children of its call.
END_SECONDS = 1.0


class WorkerLost(Exception):
    """A worker ended before its call did."""


class _Said(NamedTuple):
    what: Any


class _Returned(NamedTuple):
    result: Any


@dataclass
class _Worker:
    process: Any
    pipe: Connection


def in_processes(
    calls: Sequence[Callable[[Say], R]], jobs: int, hear: Say = lambda _said: None
) -> Generator[tuple[int, R], None, None]:
    """Yields the number and the result of each call, as they end.

    Up to `jobs` worker processes make them, each one after the other. A call is given a function, and `hear` gets what
    it is called with. What a call raises is raised here. An iteration that ends early ends the workers, and what they
    run in children. Interrupts are for the caller: workers ignore them. Raises WorkerLost.
    """
    waiting = deque(range(len(calls)))
    workers: list[_Worker] = []
    busy: dict[Any, tuple[_Worker, int]] = {}
    try:
        for _ in range(min(jobs, len(calls))):
            workers.append(_start(calls, [worker.pipe for worker in workers]))
            _hand_out(workers[-1], waiting, busy)
        while busy:
            for pipe in wait(list(busy)):
                worker, number = busy[pipe]
                try:
                    message = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join(END_SECONDS)
                    raise WorkerLost(f"a worker was lost: {how_it_died(worker.process.exitcode)}") from None
                if isinstance(message, BaseException):
                    raise message
                if isinstance(message, _Said):
                    hear(message.what)
                else:
                    del busy[pipe]
                    _hand_out(worker, waiting, busy)
                    yield number, message.result
    finally:
        _end(workers)


def unheard(call: Callable[[], R]) -> Callable[[Say], R]:
    """A call for `in_processes` that has nothing to say before it ends."""
    return lambda _say: call()


def in_order(results: Iterator[tuple[int, R]]) -> Iterator[R]:
    """The results by their numbers, from 0 on, each as soon as those before it are there."""
    ready: dict[int, R] = {}
    following = 0
    for number, result in results:
        ready[number] = result
        while following in ready:
            yield ready.pop(following)
            following += 1


def _start(calls: Sequence[Callable[[Say], Any]], inherited: list[Connection]) -> _Worker:
    ours, theirs = FORK.Pipe()
    with signals_held():
        process = FORK.Process(target=_work, args=(calls, theirs, [*inherited, ours], os.getpid()))
        process.start()
    theirs.close()
    return _Worker(process, ours)


def _hand_out(worker: _Worker, waiting: deque[int], busy: dict[Any, tuple[_Worker, int]]) -> None:
    if waiting:
        number = waiting.popleft()
        busy[worker.pipe] = worker, number
        with contextlib.suppress(OSError):  # a dead worker: its pipe says so
            worker.pipe.send(number)


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    latest = time.monotonic() + END_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, latest - time.monotonic()))
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()


def _work(
    calls: Sequence[Callable[[Say], Any]], pipe: Connection, inherited: list[Connection], parent: int
) -> NoReturn:
    """Makes calls until the process is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Unwinds, other than the default, so that what runs a target in a child ends the child.
    signal.signal(signal.SIGTERM, _leave)
    let_signals_in()
    die_with(parent)
    for other in inherited:
        other.close()
    try:
        while True:
            number = pipe.recv()
            pipe.send_bytes(pickled(_made(calls[number], pipe)))
    except (EOFError, OSError):
        pass  # the caller has gone
    finally:
        # What stands in the buffers of stdout is the caller's.
        os._exit(0)


def _made(call: Callable[[Say], Any], pipe: Connection) -> _Returned | Exception:
    try:
        return _Returned(call(lambda what: pipe.send_bytes(pickled(_Said(what)))))
    except Exception as error:
        error.add_note(f"raised in a worker process:\n{traceback.format_exc()}")
        return error


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit()
