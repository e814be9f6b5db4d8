"""Running one driver on one target, in a child process where that is possible."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvlockstep.core.isolation import SharedWatchdog
from kvlockstep.core.notes import EpisodeNotes, noting
from kvlockstep.core.parent import RUNNING, NotedRun, doing, noting_for_parent
from kvlockstep.core.profiles import Profile
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers import Driver, Run, driver_named
from kvlockstep.drivers.episode import Outcome
from kvlockstep.drivers.explore import Explore
from kvlockstep.models.core.model import Model, Scope
from kvlockstep.models.registry import model_of
from kvlockstep.runs.supervising import supervised, supervises
from kvlockstep.targets.registry import Target

Steps = Callable[[int], None]


def drive(
    driver: str | Driver,
    target: Target,
    budget: Profile,
    seed: int,
    progress: Steps | None = None,
    notes: EpisodeNotes | None = None,
    samples: bool = True,
) -> Outcome:
    """One driver, or that of this name, on one target in this process; the failure is not shrunk.

    Each operation is noted in `notes` before it is tried. Without `samples` no steps in new states are counted. Raises
    UsageError for an unknown driver.
    """
    model_type = model_of(target.contract)
    if notes is not None:
        model_type = noting(model_type, notes)
    with Watchdog(budget.step_seconds).watching() as watchdog:
        one = driver_named(driver) if isinstance(driver, str) else driver
        return one.run(Run(model_type, target.factory, budget, watchdog, seed, progress, samples))


def drive_apart(
    name: str,
    target: Target,
    budget: Profile,
    seed: int,
    *,
    directory: Path,
    progress: Steps | None = None,
    in_process: bool = False,
) -> Outcome:
    """One driver on one target in a child process, unless `in_process` or if the target cannot run in one.

    A target that ends this process ends the command; the process that waits for it saves the trace in `directory`.
    """
    driver = driver_named(name)

    def work(model_type: type[Model[Any]], watchdog: SharedWatchdog) -> Outcome:
        return driver.run(Run(model_type, target.factory, budget, watchdog, seed, watchdog.report))

    if in_process or not supervises(target):
        noted = NotedRun(target.contract, target.name, name, seed, str(directory))
        with doing(RUNNING, f"{name} on {target.contract} {target.name}"), noting_for_parent(noted) as notes:
            return drive(name, target, budget, seed, progress, notes)
    return supervised(name, model_of(target.contract), work, budget.step_seconds, progress)


def explore_scope(
    target: Target,
    scope: Scope,
    budget: Profile,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    max_depth: int | None = None,
    progress: Steps | None = None,
) -> Outcome:
    """Explores one scope, in a child process if the target can run in one.

    Only the time that a step may take is from the budget: without `steps`, `seconds` and `max_depth` it goes on until
    every state is expanded.
    """

    steps_limit, seconds_limit = (math.inf if limit is None else limit for limit in (steps, seconds))
    driver = Explore((scope,), steps_limit, seconds_limit, max_depth)

    def work(model_type: type[Model[Any]], watchdog: Watchdog, tell: Steps | None) -> Outcome:
        return driver.run(Run(model_type, target.factory, budget, watchdog, progress=tell))

    model_type = model_of(target.contract)
    if supervises(target):
        return supervised("explore", model_type, lambda m, w: work(m, w, w.report), budget.step_seconds, progress)
    with Watchdog(budget.step_seconds).watching() as watchdog:
        return work(model_type, watchdog, progress)
