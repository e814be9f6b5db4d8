"""The shards of a campaign as drivers play them: with the states that it counts, and Hypothesis's database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest import SkipTest

from kvlockstep.campaign.distinct import state_hash
from kvlockstep.campaign.examples import example_database
from kvlockstep.core.errors import UsageError, known_names
from kvlockstep.core.profiles import Profile
from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers import SHARD_DRIVERS, Run, Shard, ShardDriver
from kvlockstep.drivers.episode import SAMPLED_STEPS, Outcome
from kvlockstep.drivers.stateful import SHARD_STEPS, HypothesisMachines
from kvlockstep.models.core.model import Factory, Model

MOST_REUSED = 1_000
# Looking at a state costs up to a third of a step, so the states of one episode in so many are counted.
LOOKED_AT = 64


@dataclass
class _Episode(Outcome):
    def sample(self, model: Model[Any]) -> None:
        self.seen.add(state_hash((model.scope, model.sketch())))


def shard_of(
    driver: ShardDriver,
    model_type: type[Model[Any]],
    factory: Factory,
    seed: int,
    episodes: range,
    watchdog: Watchdog,
    database: str = "",
) -> Shard:
    """The shard as the driver plays it. `database` names an example database as `example_database` takes it."""

    def new_outcome(number: int) -> Outcome:
        looked_at = number % LOOKED_AT == 0
        return _Episode(driver.name, states=1, sampled=0 if looked_at else SAMPLED_STEPS)

    return Shard(model_type, factory, seed, episodes, watchdog, new_outcome, example_database(database))


def reuse_examples(
    model_type: type[Model[Any]], factory: Factory, seed: int, watchdog: Watchdog, database: str
) -> Trace | None:
    """Plays the failing examples that other campaigns left in the database; returns a failure, not shrunk."""
    driver = HypothesisMachines(example_database(database), reuse=True)
    budget = Profile("reuse", examples=MOST_REUSED, steps_per_example=SHARD_STEPS)
    try:
        return driver.run(Run(model_type, factory, budget, watchdog, seed)).failure
    except SkipTest:  # Hypothesis calls it that when there is nothing to play
        return None


def shard_driver(name: str) -> ShardDriver:
    """The driver of this name. Raises UsageError."""
    if name not in SHARD_DRIVERS:
        raise UsageError(f"unknown driver {name!r} for fuzz{known_names(name, SHARD_DRIVERS)}")
    return SHARD_DRIVERS[name]
