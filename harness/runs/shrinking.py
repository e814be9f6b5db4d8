"""Shrinking of a failure, in a child process where that is possible."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kvlockstep.core.capture import printing
from kvlockstep.core.isolation import ChildLost, in_child
from kvlockstep.core.profiles import Profile
from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import run_ops
from kvlockstep.drivers.shrink import RunOps, ShrinkBudget, shrink
from kvlockstep.models.core.model import Factory, Model
from kvlockstep.models.registry import model_of
from kvlockstep.runs.supervising import ends_processes, run_ops_supervised, supervises, with_answers
from kvlockstep.targets.registry import Target


def shrink_failure(target: Target, trace: Trace, profile: Profile) -> Trace:
    """The failure made short, under supervision where that is possible."""
    model_type = model_of(target.contract)
    if supervises(target):
        return shrink_model(model_type, target.factory, trace, profile)
    watchdog = Watchdog(profile.step_seconds)
    with watchdog.watching():
        return _shrink(model_type, target.factory, trace, watchdog, profile)


def shrink_model(model_type: type[Model[Any]], factory: Factory, trace: Trace, profile: Profile) -> Trace:
    """The failure of a model made short: in one child, or in a child for each attempt if attempts end or hang it."""

    def attempts(watchdog: Watchdog, run: RunOps = run_ops) -> Trace:
        return _shrink(printing(model_type), factory, trace, watchdog, profile, run)

    if not ends_processes(trace):
        with suppress(ChildLost):
            return in_child(attempts, profile.step_seconds)
    watchdog = Watchdog(profile.step_seconds)
    return with_answers(model_type, factory, attempts(watchdog, run_ops_supervised), watchdog)


def _shrink(
    model_type: type[Model[Any]],
    factory: Factory,
    trace: Trace,
    watchdog: Watchdog,
    profile: Profile,
    run: RunOps = run_ops,
) -> Trace:
    budget = ShrinkBudget(profile.shrink_steps, profile.shrink_limit, profile.short_enough, profile.simplify)
    return shrink(model_type, factory, trace, watchdog, budget, run)
