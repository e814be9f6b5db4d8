"""How a driver plays the episodes of a shard, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import SkipTest

from hypothesis import Phase

from kvlockstep.campaign.distinct import state_hash
from kvlockstep.campaign.examples import example_database
from kvlockstep.core.errors import UsageError
from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import SAMPLED_STEPS, Outcome
from kvlockstep.drivers.guided import Guide
from kvlockstep.drivers.hypothesis_machine import hypothesis_run
from kvlockstep.drivers.random_walk import run_episode
from kvlockstep.models.core.model import Factory, Model

HYPOTHESIS_STEPS = 50
MOST_REUSED = 1_000
# Looking at a state costs up to a third of a step, so the states of one episode in so many are counted.
LOOKED_AT = 64


class Episodes(NamedTuple):
    """The episodes `numbers` of a seed, to be played; what comes out depends on nothing else.

    `database` names the Hypothesis example database that failing examples are saved to, as `example_database` takes it.
    """

    model_type: type[Model[Any]]
    factory: Factory
    seed: int
    numbers: range
    watchdog: Watchdog
    database: str = ""


@dataclass
class _Episode(Outcome):
    def sample(self, model: Model[Any]) -> None:
        self.seen.add(state_hash((model.scope, model.sketch())))


def _episode(driver: str, number: int) -> Outcome:
    looked_at = number % LOOKED_AT == 0
    return _Episode(driver, states=1, sampled=0 if looked_at else SAMPLED_STEPS)


class ShardDriver(NamedTuple):
    """`play` answers an Outcome for each episode, or with `each` False one for all of them.

    `alone`: an episode can be played without those before it in its shard.
    """

    name: str
    play: Callable[[Episodes], Iterator[Outcome]]
    alone: bool
    each: bool = True


def play_random(episodes: Episodes) -> Iterator[Outcome]:
    """Seeded random episodes."""
    model_type, factory, seed, numbers, watchdog, _ = episodes
    for number in numbers:
        outcome = _episode("random", number)
        outcome.failure = run_episode(model_type, factory, seed, number, watchdog, outcome)
        yield outcome


def play_guided(episodes: Episodes) -> Iterator[Outcome]:
    """Random episodes that end where they find nothing that the shard has not met."""
    guide = Guide(episodes.model_type, seed=episodes.seed)
    for number in episodes.numbers:
        outcome = _episode("guided", number)
        outcome.failure = guide.run_episode(episodes.factory, number, episodes.watchdog, outcome)
        yield outcome


def play_hypothesis(episodes: Episodes) -> Iterator[Outcome]:
    """One Hypothesis run with as many examples as there are episodes; it ends at the first failure."""
    model_type, factory, seed, numbers, watchdog, database = episodes
    outcome = hypothesis_run(
        model_type,
        factory,
        seed=seed * 1_000_003 + numbers.start,
        watchdog=watchdog,
        examples=len(numbers),
        steps=HYPOTHESIS_STEPS,
        database=example_database(database),
    )
    outcome.failure = outcome.failure and outcome.failure.but(seed=seed)
    yield outcome


def reuse_examples(
    model_type: type[Model[Any]], factory: Factory, seed: int, watchdog: Watchdog, database: str
) -> Trace | None:
    """Plays the failing examples that other campaigns left in the database; answers a failure, not shrunk."""
    try:
        return hypothesis_run(
            model_type,
            factory,
            seed=seed,
            watchdog=watchdog,
            examples=MOST_REUSED,
            steps=HYPOTHESIS_STEPS,
            database=example_database(database),
            phases=(Phase.reuse,),
        ).failure
    except SkipTest:  # Hypothesis calls it that when there is nothing to play
        return None


SHARD_DRIVERS = {
    driver.name: driver
    for driver in (
        ShardDriver("random", play_random, alone=True),
        ShardDriver("guided", play_guided, alone=False),
        ShardDriver("hypothesis", play_hypothesis, alone=False, each=False),
    )
}


def shard_driver(name: str) -> ShardDriver:
    """The driver of this name. Raises UsageError."""
    if name not in SHARD_DRIVERS:
        raise UsageError(f"unknown driver {name!r} for fuzz; known: {', '.join(SHARD_DRIVERS)}")
    return SHARD_DRIVERS[name]
