"""Workers on many machines: actors of a Ray cluster, each with a worker process of its own.

An actor does with its worker what this machine does with its own, so that a target may hang or die there as well. What
an actor was doing when its node went away is done again by another.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections import deque
from typing import Any

from kvlockstep.campaign.plan import Plan
from kvlockstep.campaign.tasks import Task
from kvlockstep.campaign.workers import Done, LocalWorkers, Workers
from kvlockstep.core.capture import output_shown, shows_output
from kvlockstep.core.errors import UsageError
from kvlockstep.targets.registry import ENGINE_PATH, Target, resolve

try:
    import ray
except ImportError as error:
    raise UsageError("--workers ray needs the package ray: pip install 'kvlockstep[cluster]'") from error

START_SECONDS = 120
CONNECT_SECONDS = 10
# Ray collects what actors print, with a delay.
OUTPUT_SECONDS = 2
SHARED_SCHEMES = ("redis://", "rediss://")


def ray_workers(target: Target, plan: Plan, jobs: int | None, database: str, *, address: str | None = None) -> Workers:
    """`jobs` actors on the cluster at `address`, or one for each of its CPUs.

    Raises UsageError if there is no such cluster, or no actor can be started on it.
    """
    return RayWorkers(target, plan, jobs, database if database.startswith(SHARED_SCHEMES) else "", address)


class Remote:
    """Actor on a node: it runs one worker process and watches it."""

    def __init__(self, plan: Plan, path: list[str], engine_path: str, database: str, shown: bool) -> None:
        sys.path.extend(entry for entry in path if entry not in sys.path)
        if engine_path:
            os.environ.setdefault(ENGINE_PATH, engine_path)
        target = resolve(plan.contract, plan.target)
        # As long as the actor lives. Ray brings what it prints to the machine that gave the command.
        self._open = contextlib.ExitStack()
        if shown:
            self._open.enter_context(output_shown())
        self._pool = LocalWorkers(target.factory, plan, 1, database)

    def where(self) -> str:
        """The node, for messages."""
        return str(ray.util.get_node_ip_address())

    def do(self, task: Task) -> tuple[Done, list[str]]:
        """Completes a task; returns it with notes on the workers lost meanwhile."""
        self._pool.submit(task)
        while True:
            if done := self._pool.collect(1.0):
                return done[0], self._pool.lost()


class RayWorkers:
    """Workers in actors. A lost actor is replaced as soon as the cluster has room for another."""

    def __init__(self, target: Target, plan: Plan, jobs: int | None, database: str, address: str | None) -> None:
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(address)
        self.jobs = jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._arguments = (plan, [os.getcwd(), *sys.path], os.environ.get(ENGINE_PATH, ""), database, shows_output())
        self._queue: deque[Task] = deque()
        self._lost: list[str] = []
        self._actors: set[Any] = set()
        self._starting: dict[Any, Any] = {}
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Task]] = {}
        for _ in range(self.jobs):
            self._start()
        self._wait_for_first(target)

    def free(self) -> int:
        return len(self._idle) - len(self._queue)

    def submit(self, task: Task) -> None:
        self._queue.append(task)
        self._hand_out()

    def collect(self, seconds: float) -> list[Done]:
        self._hand_out()
        waiting = [*self._busy, *self._starting]
        ready, _ = ray.wait(waiting, num_returns=1, timeout=seconds) if waiting else ([], [])
        if ready:
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        done = []
        for reference in ready:
            if reference in self._starting:
                self._started(reference)
            elif (result := self._ended(reference)) is not None:
                done.append(result)
        self._hand_out()
        return done

    def lost(self) -> list[str]:
        told, self._lost = self._lost, []
        return told

    def close(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()
        if shows_output():
            time.sleep(OUTPUT_SECONDS)
        if self._ours:
            ray.shutdown()

    def _start(self) -> None:
        actor = ray.remote(num_cpus=1, max_restarts=0)(Remote).remote(*self._arguments)
        self._actors.add(actor)
        self._starting[actor.where.remote()] = actor

    def _wait_for_first(self, target: Target) -> None:
        ray.wait(list(self._starting), num_returns=1, timeout=START_SECONDS)
        try:
            for reference in ray.wait(list(self._starting), num_returns=len(self._starting), timeout=0)[0]:
                ray.get(reference)
                self._idle.append(self._starting.pop(reference))
        except ray.exceptions.RayError as error:
            self.close()
            raise UsageError(
                f"no node of the cluster could make the target {target.name!r}: it and kvlockstep must be installed on "
                f"each: {str(error).strip().splitlines()[-1]}"
            ) from error
        if not self._idle:
            self.close()
            raise UsageError(f"no node of the cluster had a free CPU for {START_SECONDS} s")

    def _hand_out(self) -> None:
        while self._idle and self._queue:
            actor, task = self._idle.pop(), self._queue.popleft()
            self._busy[actor.do.remote(task)] = (actor, task)

    def _started(self, reference: Any) -> None:
        actor = self._starting.pop(reference)
        try:
            ray.get(reference)
        except ray.exceptions.RayError:
            self._replace(actor)
        else:
            self._idle.append(actor)

    def _ended(self, reference: Any) -> Done | None:
        actor, task = self._busy.pop(reference)
        try:
            done, lost = ray.get(reference)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:
            self._lost.append(f"{task.kind} {task.number}: {type(error).__name__}; it is done again")
            self._queue.appendleft(task)
            self._replace(actor)
            return None
        self._lost += lost
        self._idle.append(actor)
        return Done(task, done.result)

    def _replace(self, actor: Any) -> None:
        self._actors.discard(actor)
        self._start()


def _connect(address: str | None) -> None:
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if host:  # Ray itself would wait for minutes for a cluster that is not there
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(
            address=address,
            include_dashboard=None if address else False,
            log_to_driver=shows_output(),
            logging_level="ERROR",
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"cannot join the Ray cluster at {address or 'this machine'}: {error}") from error
