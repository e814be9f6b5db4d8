"""Workers of a campaign, and those that come with the package: processes of this machine.

A worker that hangs is killed and a dead one is replaced. Its task is done again, in children that the new worker can
lose.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

from kvlockstep.campaign.plan import Plan
from kvlockstep.campaign.shard import ShardReport
from kvlockstep.campaign.tasks import SHARD, Task, do_task, uses_children
from kvlockstep.core.capture import Capture, new_capture
from kvlockstep.core.isolation import SharedWatchdog, die_with, how_it_died
from kvlockstep.core.system import FORK, let_signals_in, start_forked
from kvlockstep.core.trace import Trace
from kvlockstep.models.core.model import Factory

# A worker that does its work in children is not watched closely, for they are.
LIMIT_WITH_CHILDREN = 300.0
JOIN_SECONDS = 5.0
TRIES = 10


class Done(NamedTuple):
    """A task with its result."""

    task: Task
    result: ShardReport | Trace | None


class Workers(Protocol):
    """Workers that do tasks. The results are the same wherever they run."""

    jobs: int

    def free(self) -> int:
        """Returns the number of further tasks that they can take now."""

    def submit(self, task: Task) -> None:
        """Begins a task."""

    def collect(self, seconds: float) -> list[Done]:
        """The tasks that have ended; waits for one at most `seconds`."""

    def lost(self) -> list[str]:
        """Describes the workers lost since the last call, except those in the report of a shard."""

    def close(self) -> None:
        """Ends all workers at once."""


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    beat: Any
    episode: Any
    task: Task | None = None
    seen: int = -1
    since: float = 0.0


class LocalWorkers:
    """Workers in `jobs` processes, forked from this one."""

    def __init__(self, factory: Factory, plan: Plan, jobs: int, database: str = "") -> None:
        self.jobs = jobs
        self._factory = factory
        self._plan = plan
        self._database = database
        self._lost: list[str] = []
        self._queue: deque[Task] = deque()
        self._workers: list[_Worker] = []
        for _ in range(jobs):
            self._workers.append(self._start())

    def free(self) -> int:
        return sum(worker.task is None for worker in self._workers) - len(self._queue)

    def submit(self, task: Task) -> None:
        self._queue.append(task)
        self._hand_out()

    def collect(self, seconds: float) -> list[Done]:
        self._hand_out()
        done: list[Done] = []
        busy: dict[Any, _Worker] = {worker.pipe: worker for worker in self._workers if worker.task is not None}
        for pipe in wait(list(busy), seconds):
            worker = busy[pipe]
            task = worker.task
            assert task is not None
            try:
                result = worker.pipe.recv()
            except (EOFError, OSError):
                worker.process.join(JOIN_SECONDS)
                done += self._replace(worker, how_it_died(worker.process.exitcode))
                continue
            if isinstance(result, BaseException):
                raise result
            worker.task = None
            done.append(Done(task, result))
        for worker in [w for w in self._workers if w.task is not None and self._hangs(w)]:
            done += self._replace(worker, "it hung and was killed")
        return done

    def lost(self) -> list[str]:
        told, self._lost = self._lost, []
        return told

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
        self._workers = []

    def _start(self) -> _Worker:
        ours, theirs = FORK.Pipe()
        beat, episode = FORK.RawArray("Q", 2), FORK.RawValue("Q", 0)
        inherited = [worker.pipe for worker in self._workers] + [ours]
        with new_capture() as capture:
            arguments = (
                self._factory,
                self._plan,
                self._database,
                theirs,
                inherited,
                beat,
                episode,
                capture,
                os.getpid(),
            )
            process = start_forked(_work, arguments)
        theirs.close()
        return _Worker(process, ours, beat, episode)

    def _hand_out(self) -> None:
        for worker in self._workers:
            if worker.task is None and self._queue:
                worker.task = self._queue.popleft()
                worker.seen, worker.since = -1, time.monotonic()
                with contextlib.suppress(OSError):  # a dead worker: `collect` sees it
                    worker.pipe.send(worker.task)

    def _hangs(self, worker: _Worker) -> bool:
        if worker.beat[0] != worker.seen:
            worker.seen, worker.since = worker.beat[0], time.monotonic()
        assert worker.task is not None
        limit = LIMIT_WITH_CHILDREN if uses_children(worker.task) else 3 * self._plan.step_seconds
        return time.monotonic() - worker.since > limit

    def _replace(self, worker: _Worker, how: str) -> list[Done]:
        """Replaces a lost worker; the new one does the task again.

        A shard is never given up. A failure that cost many workers is kept as it is.
        """
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        self._workers.remove(worker)
        self._workers.append(self._start())
        task = worker.task
        assert task is not None
        if task.kind != SHARD and len(task.lost) + 1 == TRIES:
            self._lost.append(f"{task.kind} {task.number}: {how}; given up")
            return [Done(task, task.trace)]
        if task.kind != SHARD or task.lost:
            self._lost.append(f"{task.kind} {task.number}: {how}; it is done again")
        self._queue.appendleft(task.again(how, worker.episode.value))
        self._hand_out()
        return []


def _work(
    factory: Factory,
    plan: Plan,
    database: str,
    pipe: Connection,
    inherited: list[Connection],
    beat: Any,
    episode: Any,
    capture: Capture,
    parent: int,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    let_signals_in()
    die_with(parent)
    for other in inherited:
        other.close()
    capture.begin()
    gc.freeze()
    watchdog = SharedWatchdog(plan.step_seconds, beat)

    def began(number: int) -> None:
        episode.value = number

    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        episode.value = plan.episodes(task.number).start if task.kind == SHARD else task.number
        result: Any
        try:
            result = do_task(factory, plan, task, watchdog, began, database)
        except Exception as error:
            error.__traceback__ = None
            result = error
        beat[0] += 1
        try:
            pipe.send(result)
        except OSError:
            return
