"""The record of one run of a driver, and the interface that all drivers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from kvlockstep.core.profiles import Profile
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Outcome
from kvlockstep.models.core.model import Factory, Model


@dataclass(frozen=True)
class Run:
    """One run of a driver: the model and the target's factory, how much to play, and with which seed.

    `watchdog` has to watch already; the driver only counts its beats. `progress` is called with the number of steps
    that were played so far. Without `samples` nobody wants to know how many steps end in new states.
    """

    model_type: type[Model[Any]]
    factory: Factory
    budget: Profile
    watchdog: Watchdog
    seed: int = 0
    progress: Callable[[int], None] | None = None
    samples: bool = True


class Driver(Protocol):
    """A way of choosing operations. `about` completes "this driver plays ..." in `kvlockstep list`."""

    name: str
    about: str

    def run(self, run: Run) -> Outcome:
        """Plays up to the first violation or to the end of the budget. The failure is not shrunk."""
        ...


@dataclass(frozen=True)
class Shard:
    """Numbered episodes of one seed, the unit that a campaign gives to a worker.

    The outcomes depend on nothing else. `new_outcome` makes the record of the episode with this number. `database` is
    the example database of Hypothesis to which failing examples are saved, None for none.
    """

    model_type: type[Model[Any]]
    factory: Factory
    seed: int
    episodes: range
    watchdog: Watchdog
    new_outcome: Callable[[int], Outcome]
    database: Any = None


class ShardDriver(Driver, Protocol):
    """A driver that can also play the episodes of a shard.

    `alone`: an episode can be played without those before it in its shard. `each`: there is an outcome for each
    episode, else one for all of them.
    """

    alone: bool
    each: bool

    def play(self, shard: Shard) -> Iterator[Outcome]:
        """Plays the episodes in their order and yields what came of them."""
        ...
