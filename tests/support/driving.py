"""The drivers in one call, with no budget but what a test says."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from hypothesis import settings
from watched import watched

from kvlockstep.core.profiles import Profile
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers import Run
from kvlockstep.drivers.episode import Outcome
from kvlockstep.drivers.explore import Explore
from kvlockstep.drivers.random_walk import RandomWalk
from kvlockstep.drivers.stateful import HypothesisMachines
from kvlockstep.models.core.model import Factory, Model, Scope

# For the machines of pytest, which are to show that they run: `score` counts what Hypothesis finds.
FEW = settings(max_examples=30, deadline=None)


def random_walk(
    model_type: type[Model[Any]], factory: Factory, *, seed: int, watchdog: Watchdog, steps: int
) -> Outcome:
    """Random episodes of a seed for so many steps."""
    return RandomWalk().run(Run(model_type, factory, Profile("test", random_steps=steps), watchdog, seed))


def walk(model_type: type[Model[Any]], factory: Factory, steps: int, seed: int = 1, limit: float = 30.0) -> Outcome:
    """Random episodes for so many steps, under a watchdog that cuts off a step of more than `limit` seconds."""
    return watched(random_walk, model_type, factory, limit=limit, seed=seed, steps=steps)


def holds(model_type: type[Model[Any]], factory: Factory, steps: int) -> Counter[str]:
    """Random episodes, all of which must hold. Returns how often each goal was met."""
    outcome = walk(model_type, factory, steps)
    assert outcome.failure is None, f"{outcome.failure.law}: {outcome.failure.message}"
    return outcome.reach


def hypothesis_run(
    model_type: type[Model[Any]], factory: Factory, *, seed: int, watchdog: Watchdog, examples: int, steps: int
) -> Outcome:
    """So many examples of Hypothesis, of so many steps at most."""
    budget = Profile("test", examples=examples, steps_per_example=steps)
    return HypothesisMachines().run(Run(model_type, factory, budget, watchdog, seed))


def explore(
    model_type: type[Model[Any]],
    factory: Factory,
    *scopes: Scope,
    watchdog: Watchdog,
    steps: float = math.inf,
    seconds: float = math.inf,
    max_depth: int | None = None,
) -> Outcome:
    """Explores the scopes, without end where nothing says when."""
    driver = Explore(scopes, steps, seconds, max_depth)
    return driver.run(Run(model_type, factory, Profile("test"), watchdog))
