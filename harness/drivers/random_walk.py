"""The fast driver: seeded random episodes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import SAMPLED_STEPS, Outcome, answer_text, failed
from kvlockstep.drivers.run import Run, Shard
from kvlockstep.models.core.model import Divergence, Factory, Model, Scope
from kvlockstep.models.core.op import NotEnabled, Op, Pick

T = TypeVar("T")

EPISODE_LENGTHS = (20, 100, 100, 400)
STUCK_AFTER = 200


class RandomWalk:
    """The driver of uniform random episodes."""

    name = "random"
    about = "seeded random episodes; `fuzz` runs it in several processes"
    alone = True
    each = True

    def run(self, run: Run) -> Outcome:
        return random_walk(
            run.model_type,
            run.factory,
            seed=run.seed,
            watchdog=run.watchdog,
            steps=run.budget.random_steps,
            progress=run.progress,
        )

    def play(self, shard: Shard) -> Iterator[Outcome]:
        for episode in shard.episodes:
            outcome = shard.new_outcome(episode)
            outcome.failure = run_episode(shard.model_type, shard.factory, shard.seed, episode, shard.watchdog, outcome)
            yield outcome


def random_walk(
    model_type: type[Model[Any]],
    factory: Factory,
    *,
    seed: int,
    watchdog: Watchdog,
    steps: int | None = None,
    seconds: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Runs episodes 0, 1, ... of a seed until the steps or the time are used up, or a law is violated."""
    outcome = Outcome("random")
    started = time.perf_counter()
    episode = 0
    while (steps is None or outcome.steps < steps) and outcome.failure is None:
        if seconds is not None and time.perf_counter() - started >= seconds:
            break
        outcome.failure = run_episode(model_type, factory, seed, episode, watchdog, outcome)
        episode += 1
        if progress is not None:
            progress(outcome.steps)
    outcome.states = episode
    outcome.seconds = time.perf_counter() - started
    return outcome


def run_episode(
    model_type: type[Model[Any]],
    factory: Factory,
    seed: int,
    episode: int,
    watchdog: Watchdog,
    outcome: Outcome,
) -> Trace | None:
    """Runs one episode, which depends on nothing but `seed` and `episode`."""
    pick = picker(seed, episode)
    scope = pick(model_type.scopes)
    length = scope.stretch * pick(EPISODE_LENGTHS)
    trace = walk(model_type, factory, scope, length, pick, watchdog, outcome)
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
) -> Trace | None:
    """Up to `length` picked steps in one scope; counts them in `outcome` and returns the trace of a violation.

    The episode also ends when `stale`, asked after each step, says so.
    """
    ops: list[Op] = []
    answers: list[Any] = []
    try:
        watchdog.beat += 1
        model = model_type(scope, factory)
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
    except Divergence as divergence:
        outcome.steps += len(ops)
        return failed(model_type, scope, ops, [answer_text(a) for a in answers], divergence)
    outcome.steps += len(ops)
    outcome.absorb(model)
    return None
