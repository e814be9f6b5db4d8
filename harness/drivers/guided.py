"""The guided driver: random episodes that stop early when they find nothing new.

`kvlockstep bench drivers` measures it against uniform random episodes. What did not pay on most contracts, in states
and in faults by a million steps: dropping commands for an episode, other lengths, picks that repeat themselves or
prefer old options, and going on from traces that reached rare goals or states. The traces of most faults are short, so
replaying costs more steps than a rare place is worth.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Outcome
from kvlockstep.drivers.random_walk import EPISODE_LENGTHS, picker, walk
from kvlockstep.drivers.run import Run, Shard
from kvlockstep.models.core.model import Factory, Model

PATIENCE = 6
LONGEST_PAUSE = 15
MOST_STATES = 100_000


class Guided:
    """The driver of guided episodes. `check` does not run it: its states are those of one shard."""

    name = "guided"
    about = "in `fuzz` only: random episodes that stop early when they only revisit known states"
    alone = False
    each = True

    def run(self, run: Run) -> Outcome:
        outcome, guide = Outcome(self.name), Guide(run.model_type, seed=run.seed)
        started = time.perf_counter()
        while outcome.steps < run.budget.random_steps and outcome.failure is None:
            outcome.failure = guide.run_episode(run.factory, outcome.states, run.watchdog, outcome)
            outcome.states += 1
            if run.progress is not None:
                run.progress(outcome.steps)
        outcome.seconds = time.perf_counter() - started
        return outcome

    def play(self, shard: Shard) -> Iterator[Outcome]:
        guide = Guide(shard.model_type, seed=shard.seed)
        for episode in shard.episodes:
            outcome = shard.new_outcome(episode)
            outcome.failure = guide.run_episode(shard.factory, episode, shard.watchdog, outcome)
            yield outcome


class Guide:
    """The episodes of one shard, to be run in their order.

    An episode depends on the seed, its number and the states that those before it in the shard have met, and on
    nothing else: not on other shards, nor on the clock. At most MOST_STATES states are remembered, as their hashes.
    """

    def __init__(self, model_type: type[Model[Any]], *, seed: int) -> None:
        self.model_type = model_type
        self.seed = seed
        self.met: set[int] = set()

    def run_episode(self, factory: Factory, episode: int, watchdog: Watchdog, outcome: Outcome) -> Trace | None:
        """Runs one episode, counts its steps in `outcome`, and returns the trace of a violation."""
        pick = picker(self.seed, episode)
        scope = pick(self.model_type.scopes)
        trace = walk(
            self.model_type,
            factory,
            scope,
            pick(EPISODE_LENGTHS),
            pick,
            watchdog,
            outcome,
            stale=Patience(self.met).stale,
        )
        return trace and trace.but(driver="guided", seed=self.seed)


class Patience:
    """Decides after a step if an episode continues: it stops after PATIENCE looks in a row at known states.

    A look costs as much as a third of a step with some contracts, so after a new state it does not look for a while,
    twice as long each time, up to LONGEST_PAUSE steps. Where little is new it looks at every step.
    """

    def __init__(self, met: set[int]) -> None:
        self._met = met
        self._known = 0
        self._pause = 0
        self._wait = 0

    def stale(self, model: Model[Any]) -> bool:
        if self._wait:
            self._wait -= 1
            return False
        state = hash((model.scope, model.sketch()))
        if state in self._met:
            self._known += 1
            self._pause = 0
            return self._known >= PATIENCE
        if len(self._met) < MOST_STATES:
            self._met.add(state)
        self._known = 0
        self._wait = self._pause = min(2 * self._pause + 1, LONGEST_PAUSE)
        return False
