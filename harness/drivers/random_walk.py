"""The fast driver: seeded random episodes."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import SAMPLED_STEPS, Outcome, answer_text, failed, run_ops
from kvlockstep.drivers.run import Run, Shard
from kvlockstep.models.core.model import Divergence, Factory, Model, Scope
from kvlockstep.models.core.op import NotEnabled, Op, Pick

T = TypeVar("T")

EPISODE_LENGTHS = (20, 100, 100, 400)
STUCK_AFTER = 200
# How seldom the episodes in turn look at everything. The episodes of a campaign are so many that one of four suffices
# to see what is mended before a late look; a gate must not miss it. Only models that spare looks are concerned.
EVERY_LOOK, SPARING = (1,), (1, 8, 8, 8)


@dataclass(frozen=True)
class RandomWalk:
    """The driver of uniform random episodes, for at most `seconds`, where that is given.

    `enough` is asked after each episode; True ends the run before its budget.
    """

    name = "random"
    about = "seeded random episodes; `fuzz` runs it in several processes"
    alone = True
    each = True

    seconds: float = math.inf
    enough: Callable[[Outcome], bool] = lambda _outcome: False

    def run(self, run: Run) -> Outcome:
        """Plays episodes 0, 1, ... of the seed until `random_steps` of the budget are used up, or a law is violated."""
        outcome = Outcome(self.name, sampled=0 if run.samples else SAMPLED_STEPS)
        started = time.perf_counter()
        while outcome.steps < run.budget.random_steps and outcome.failure is None:
            if time.perf_counter() - started >= self.seconds or self.enough(outcome):
                break
            outcome.failure = run_episode(run.model_type, run.factory, run.seed, outcome.states, run.watchdog, outcome)
            outcome.states += 1
            if run.progress is not None:
                run.progress(outcome.steps)
        outcome.seconds = time.perf_counter() - started
        return outcome

    def play(self, shard: Shard) -> Iterator[Outcome]:
        for episode in shard.episodes:
            outcome = shard.new_outcome(episode)
            outcome.failure = run_episode(
                shard.model_type, shard.factory, shard.seed, episode, shard.watchdog, outcome, SPARING
            )
            yield outcome


def run_episode(
    model_type: type[Model[Any]],
    factory: Factory,
    seed: int,
    episode: int,
    watchdog: Watchdog,
    outcome: Outcome,
    looks: Sequence[int] = EVERY_LOOK,
) -> Trace | None:
    """Runs one episode, which depends on nothing but `seed`, `episode` and `looks`.

    The operations depend on the first two alone: each look is one more question to the target, and picks nothing.
    """
    pick = picker(seed, episode)
    scope = pick(model_type.scopes)
    length = scope.stretch * pick(EPISODE_LENGTHS)
    every = looks[episode % len(looks)]
    trace = walk(model_type, factory, scope, length, pick, watchdog, outcome, every=every)
    return trace and trace.but(driver="random", seed=seed)


def picker(seed: int, episode: int) -> Pick:
    """The pick of one episode."""
    fraction = random.Random(seed * 1_000_003 + episode).random

    def pick(options: Sequence[T], /) -> T:
        n = len(options)
        if n == 0:
            raise NotEnabled
        return options[int(fraction() * n)]

    return pick


def walk(
    model_type: type[Model[Any]],
    factory: Factory,
    scope: Scope,
    length: int,
    pick: Pick,
    watchdog: Watchdog,
    outcome: Outcome,
    *,
    stale: Callable[[Model[Any]], bool] | None = None,
    every: int = 1,
) -> Trace | None:
    """Up to `length` picked steps in one scope; counts them in `outcome` and returns the trace of a violation.

    The episode also ends when `stale`, asked after each step, says so. The model may look at everything only once in
    `every` times. The operations of a violation are then played again with every look, and the trace is what that
    finds. If it finds nothing, looks change what the target does, which `unsteady` counts.
    """
    sparing = False
    ops: list[Op] = []
    answers: list[Any] = []
    try:
        watchdog.beat += 1
        model = model_type(scope, factory)
        sparing = every > 1 and model.spare(every)
        table = model.table
        misses = 0
        sampling = outcome.sampled < SAMPLED_STEPS
        while len(ops) < length and misses < STUCK_AFTER:
            try:
                op = model.propose(pick(table), pick)
            except NotEnabled:
                misses += 1
                continue
            watchdog.beat += 1
            ops.append(op)
            try:
                answers.append(model.step(op))
                misses = 0
                if sampling:
                    outcome.sample(model)
                if stale is not None and stale(model):
                    break
            except NotEnabled:
                ops.pop()
                misses += 1
        if sparing:
            model.catch_up()
    except Divergence as divergence:
        outcome.steps += len(ops)
        if sparing:
            looked = run_ops(model_type, factory, scope, ops, watchdog)
            outcome.unsteady += looked is None
            return looked
        return failed(model_type, scope, ops, [answer_text(a) for a in answers], divergence)
    outcome.steps += len(ops)
    outcome.absorb(model)
    return None
