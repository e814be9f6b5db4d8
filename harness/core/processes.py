"""Calls in forked processes, several at the same time."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TypeVar

from kvlockstep.core.isolation import die_with, how_it_died, pickled
from kvlockstep.core.system import FORK, let_signals_in, signals_held, start_forked

R = TypeVar("R")
Say = Callable[[Any], None]

# What a worker may take to end the children of its call.
END_SECONDS = 1.0


class WorkerLost(Exception):
    """A worker ended before its call did."""


class Ended(NamedTuple):
    """The call of this number has returned its `result`, or raised `error`, which is WorkerLost if its worker ended."""

    number: int
    result: Any
    error: BaseException | None = None


class _Said(NamedTuple):
    what: Any


class _Returned(NamedTuple):
    result: Any


@dataclass
class _Worker:
    process: Any
    pipe: Connection


@contextmanager
def in_processes(
    calls: Sequence[Callable[[Say], Any]], jobs: int, hear: Say = lambda _said: None
) -> Iterator[Iterator[Ended]]:
    """Makes each call, up to `jobs` of them at the same time, and yields them as they end.

    The worker processes are forked when the block is entered, and are ended with it, with what they run in children.
    A call is given a function; `hear` gets what it is called with, while somebody waits for the next end. Interrupts
    are for the caller: workers ignore them.
    """
    workers: list[_Worker] = []
    try:
        for _ in range(min(jobs, len(calls))):
            workers.append(_start(calls, workers))
        yield _ends(calls, workers, hear)
    finally:
        _end(workers)


def unheard(call: Callable[[], R]) -> Callable[[Say], R]:
    """A call for `in_processes` that has nothing to say before it ends."""
    return lambda _say: call()


def in_order(ended: Iterable[Ended]) -> Iterator[Any]:
    """The results by their numbers, from 0 on, each as soon as those before it are there. Raises what a call raised."""
    ready: dict[int, Ended] = {}
    following = 0
    for one in ended:
        ready[one.number] = one
        while following in ready:
            yield result_of(ready.pop(following))
            following += 1


def result_of(ended: Ended) -> Any:
    """The result of a call. Raises what it raised."""
    if ended.error is not None:
        raise ended.error
    return ended.result


def _ends(calls: Sequence[Callable[[Say], Any]], workers: list[_Worker], hear: Say) -> Iterator[Ended]:
    waiting = deque(range(len(calls)))
    busy: dict[Any, tuple[_Worker, int]] = {}
    for worker in workers:
        _hand_out(worker, waiting, busy)
    while busy:
        for pipe in wait(list(busy)):
            worker, number = busy[pipe]
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                worker.process.join(END_SECONDS)
                how = how_it_died(worker.process.exitcode)
                workers.remove(worker)
                worker.pipe.close()
                worker = _start(calls, workers)
                workers.append(worker)
                message = WorkerLost(f"a worker was lost: {how}")
            if isinstance(message, _Said):
                hear(message.what)
                continue
            del busy[pipe]
            _hand_out(worker, waiting, busy)
            if isinstance(message, BaseException):
                yield Ended(number, None, message)
            else:
                yield Ended(number, message.result)


def _start(calls: Sequence[Callable[[Say], Any]], others: Sequence[_Worker]) -> _Worker:
    ours, theirs = FORK.Pipe()
    inherited = [*(other.pipe for other in others), ours]
    process = start_forked(_work, (calls, theirs, inherited, os.getpid()))
    theirs.close()
    return _Worker(process, ours)


def _hand_out(worker: _Worker, waiting: deque[int], busy: dict[Any, tuple[_Worker, int]]) -> None:
    if waiting:
        number = waiting.popleft()
        busy[worker.pipe] = worker, number
        with contextlib.suppress(OSError):  # a dead worker: its pipe says so
            worker.pipe.send(number)


def _end(workers: list[_Worker]) -> None:
    # A second interrupt here would leave workers behind, and Python waits for them when it ends.
    with signals_held():
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
    # Not SIG_IGN: where that is set, an interrupt is one that the target has raised.
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    # Unwinds, other than the default, so that what runs a target in a child ends the child.
    signal.signal(signal.SIGTERM, _leave)
    let_signals_in()
    die_with(parent)
    for other in inherited:
        other.close()
    exit_code = 0
    try:
        while True:
            number = pipe.recv()
            pipe.send_bytes(_made(calls[number], pipe))
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the caller has gone, or wants no more
    except BaseException:
        traceback.print_exc()
        exit_code = 1
    finally:
        # What stands in the buffers of stdout is the caller's.
        os._exit(exit_code)


def _made(call: Callable[[Say], Any], pipe: Connection) -> bytes:
    """What the caller gets of a call: its result, or what it raised."""
    try:
        return pickled(_Returned(call(lambda what: pipe.send_bytes(pickled(_Said(what))))))
    except (Exception, SystemExit) as error:
        error.add_note(f"raised in a worker process:\n{traceback.format_exc()}")
        return pickled(error)


def _leave(_number: int, _frame: FrameType | None) -> None:
    # Calls of targets let an interrupt through. Anything else would be theirs, and a finding.
    raise KeyboardInterrupt
