"""Makes a failing trace short: drops operations, then simplifies arguments and scope, keeping the violated law."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.candidates import (
    Transform,
    fewer_ops,
    merged,
    single_ops,
    size_of,
    smaller_at_once,
    smaller_scope,
    without_pairs,
)
from kvlockstep.drivers.episode import SAMPLED_STEPS, Outcome, run_ops
from kvlockstep.drivers.random_walk import picker, walk
from kvlockstep.models.core.model import Factory, Model, Scope
from kvlockstep.models.core.op import Op, Pick
from kvlockstep.properties.law import TERMINATION

# A trace of more than LONG operations is swept before it is shrunk greedily, which takes quadratically many attempts.
# One of more than TOO_LONG is not shrunk greedily from its original at all.
LONG, TOO_LONG = 60, 120
# People read so many operations at a glance: a longer trace is worth the passes that rarely help.
ENOUGH = 9
# Nearly every violation of so few operations is the shortest there is, so random episodes stop looking for less.
SHORT_ENOUGH = 4
# So many shortcuts of a long trace are swept: most end alike, and each costs as much as the first.
STARTS = 4
# Random episodes: short ones first, whose number is bounded since most traces have no shorter relative, then ones as
# long as LONG. The first scopes of a model are its smallest.
SEARCH_EPISODES, LONG_EPISODES = 1_000, 600
SEARCH_SCOPES = 6
SEARCH_LENGTH = 24
# Steps that could be played while a child process is made, and while a call is cut off after HANG_SECONDS.
CHILD_STEPS = 50
HANG_STEPS = 1_000
# Shares of the budget that are spent when a long trace is no longer dropped from greedily, when it is no longer swept,
# and when each later pass ends, so that simpler arguments and scopes always get their turn.
SHARE_BEFORE_SWEEPS, SHARE_OF_SWEEPS, SHARE_OF_SEARCH, SHARE_OF_RESWEEP, SHARE_ELSEWHERE = 0.3, 0.5, 0.65, 0.8, 0.95
# Calls of a trace that hangs are cut off after this, since nearly every attempt of it hangs again.
HANG_SECONDS = 0.4

# A leak shows as accounting while requests are live, and as leak_freedom when none is.
ONE_KIND = frozenset({"accounting", "leak_freedom"})

RunOps = Callable[[type[Model[Any]], Factory, Scope, Sequence[Op], Watchdog], Trace | None]
Over = Callable[[], bool]


@dataclass
class ShrinkBudget:
    """The limits of shrinking, and what of them is used up.

    `steps` count the operations played, one more for each target made, and for child processes and time-outs as many
    as could be played meanwhile. So the result does not depend on how fast the machine is; `seconds` is a limit for
    calls that are slow beyond all reason. Random episodes look for nothing shorter than `enough` operations; without
    `simplify` no pass begins once the trace is as short. `unfinished`: there was something left to try.
    """

    steps: int = 120_000
    seconds: float = math.inf
    enough: int = SHORT_ENOUGH
    simplify: bool = True
    played: int = 0
    unfinished: bool = False
    _started: float = field(default_factory=time.perf_counter)

    def spent(self, share: float = 1.0) -> bool:
        """Tells whether this share of the budget is spent."""
        return self.played > share * self.steps or time.perf_counter() > self._started + self.seconds

    def cut(self, share: float = 1.0) -> bool:
        """As before, for a pass that no later one makes up for: then the trace is unfinished."""
        over = self.spent(share)
        self.unfinished = self.unfinished or over
        return over


def shrink(
    model_type: type[Model[Any]],
    factory: Factory,
    trace: Trace,
    watchdog: Watchdog,
    budget: ShrinkBudget,
    run: RunOps = run_ops,
) -> Trace:
    """The shortest trace found that violates the same law; marked flaky if `trace` does not repeat.

    A trace with something left to try when the budget is spent is marked unfinished. Calls of a trace that hangs are
    cut off after HANG_SECONDS; if the result is only slow, `trace` stays as it is. `run` plays the attempts.
    """
    return Shrinker(model_type, factory, trace, watchdog, budget, run).shortest()


def same_kind(law: str, other: str) -> bool:
    """True if two violations are of one kind, so that a shorter trace of one shows the defect of the other."""
    return law == other or {law, other} <= ONE_KIND


def _never() -> bool:
    return False


class Shrinker:
    """Shrinks one trace. `best` is the shortest trace so far that violates the law, as it was played.

    The passes, in an order in which each makes the next one cheaper:

    1. The trace itself. One that does not repeat is flaky and stays as it is.
    2. Fewer operations, greedily: what makes most traces short, in few attempts. A model with shortcuts has better
       ways for a long trace, so these come first there.
    3. Sweeps through a trace that is still long, from where shortcuts lead or from the trace itself. A sweep does not
       start again after each success, as the greedy way does.
    4. Fewer operations and actors, greedily, now that the trace is short enough for it; then sweeps, if that ended in
       a local minimum.
    5. Random short episodes, which need not be like the trace: dropping operations cannot leave a local minimum. They
       come before arguments and scopes are made simple, which would be lost with a shorter trace from elsewhere.
       Attempts in children are too dear for it, and so are hangs.
    6. Everything in turns until nothing helps: operations, actors, scope, arguments, pairs, scope with arguments.
    7. If the trace is still no short one: sweeps again, now in the smaller scope, then longer random episodes.
    8. Names and values in order, which changes nothing about the length.

    At last the result is played once more with the full time for each call, and has its message from there.
    """

    def __init__(
        self,
        model_type: type[Model[Any]],
        factory: Factory,
        trace: Trace,
        watchdog: Watchdog,
        budget: ShrinkBudget,
        run: RunOps = run_ops,
    ) -> None:
        self.model_type = model_type
        self.factory = factory
        self.trace = trace
        self.watchdog = watchdog
        self.budget = budget
        self.best = trace
        # Passes and turns propose much of what others have proposed: one candidate in five.
        self._failed: set[tuple[Scope, tuple[Op, ...]]] = set()
        self._run = run
        self._hangs = trace.law == TERMINATION.id

    def shortest(self) -> Trace:
        """Runs all passes. The result has the target, driver, seed and original length of the trace."""
        with self.watchdog.at_most(HANG_SECONDS if self._hangs else self.watchdog.limit):
            again = self.try_(self.trace.scope, self.trace.ops)
            if again is None:
                return self.trace.but(flaky=True)
            self.best = again
            for shorten in self._passes():
                if not self.budget.simplify and len(self.best.ops) <= self.budget.enough:
                    break
                self.best = shorten(self.best)
        return self._confirmed()

    def _passes(self) -> Iterator[Callable[[Trace], Trace]]:
        """Passes 2 to 8; whether a pass is worth it shows when those before it are done."""
        searches = self._run is run_ops and not self._hangs
        yield self._dropped
        if searches:
            yield self._searched
        yield self._minimised
        if len(self.best.ops) > ENOUGH:
            yield partial(self._swept, over=partial(self.budget.cut, SHARE_OF_RESWEEP))
            yield self._minimised
        if searches and len(self.best.ops) > ENOUGH:
            yield self._searched_in_small_scopes
            yield self._minimised
        yield self._tidied

    def try_(self, scope: Scope, ops: Sequence[Op]) -> Trace | None:
        """Plays a candidate, unless it was played in vain before or the budget is spent.

        Returns its trace if it fails as the original does.
        """
        if self.budget.cut() or (candidate := (scope, tuple(ops))) in self._failed:
            return None
        again = self._play(scope, ops)
        cut_off = again is not None and again.law == TERMINATION.id
        in_child = self._run is not run_ops
        self.budget.played += len(ops) + 1 + CHILD_STEPS * in_child + HANG_STEPS * cut_off
        if again is None or not same_kind(again.law, self.trace.law):
            self._failed.add(candidate)
            return None
        return again

    def _play(self, scope: Scope, ops: Sequence[Op]) -> Trace | None:
        return self._run(self.model_type, self.factory, scope, ops, self.watchdog)

    def _dropped(self, best: Trace) -> Trace:
        """Passes 2 to 4."""
        over_sweeps = partial(self.budget.spent, SHARE_OF_SWEEPS)
        if self.model_type.shortcuts(best.ops, best.answers) is None:
            best = self._greedily(best, fewer_ops, partial(self.budget.spent, SHARE_BEFORE_SWEEPS))
        if len(best.ops) > LONG:
            best = self._swept(best, over_sweeps)
        for transform in (fewer_ops, merged):
            best = self._greedily(best, transform)
        return self._swept(best, over_sweeps) if len(best.ops) > ENOUGH else best

    def _tidied(self, best: Trace) -> Trace:
        for tidier in self.model_type.tidy(best.ops):
            best = self.try_(best.scope, tidier) or best
        return best

    def _confirmed(self) -> Trace:
        """The best trace as it is when it is played once more, each call with its full time."""
        best = self.best
        repeats = self._play(best.scope, best.ops)
        if self._hangs and repeats is None:
            # What was cut off early was only slow.
            best = self.trace
            repeats = self._play(best.scope, best.ops)
        if repeats is not None and repeats.law == best.law:
            # While a hang is made short its calls are cut off early; the message is that of the full limit.
            best = repeats
        return best.but(
            target=self.trace.target,
            driver=self.trace.driver,
            seed=self.trace.seed,
            original=self.trace.original,
            flaky=repeats is None or repeats.law != best.law,
            unfinished=self.budget.unfinished,
        )

    def _greedily(self, best: Trace, transform: Transform, over: Over = _never) -> Trace:
        """Takes the first smaller candidate and begins again with it, until none is smaller."""
        found = True
        while found:
            found = False
            for scope, ops in transform(best, self.model_type):
                if over():
                    return best
                if (better := self.try_(scope, ops)) is not None and size_of(better) < size_of(best):
                    best, found = better, True
                    break
        return best

    def _swept(self, trace: Trace, over: Over) -> Trace:
        """A long trace without most of what it does not need, by whichever way makes it shortest."""
        best = trace
        for start in self._starts(trace):
            # Parts first: a request goes with all of its operations or not at all.
            short = self._without_parts(start, self.model_type.parts, over)
            short = self._greedily(short, smaller_scope)
            short = self._without_parts(short, single_ops, over)
            best = short if len(short.ops) < len(best.ops) else best
            if over() or len(best.ops) <= ENOUGH:
                return best
        if best is not trace:
            best = self._swept(best, over)
        if len(best.ops) > ENOUGH and len(trace.ops) <= TOO_LONG:
            # Shortcuts may have led away from the shortest; a trace that is not too long can afford the plain way too.
            short = self._greedily(trace, fewer_ops)
            best = short if len(short.ops) < len(best.ops) else best
        return best

    def _starts(self, trace: Trace) -> Iterator[Trace]:
        """Up to STARTS traces that shortcuts lead to, the others not much longer than the first.

        Where there are none, a trace too long for more thorough ways.
        """
        seen: list[tuple[Op, ...]] = []
        for ops in self.model_type.shortcuts(trace.ops, trace.answers) or ():
            if len(seen) == STARTS:
                break
            longest = STARTS * len(seen[0]) if seen else len(trace.ops)
            start = self.try_(trace.scope, ops) if len(ops) < min(longest, len(trace.ops)) else None
            if start is not None and len(start.ops) < len(trace.ops) and start.ops not in seen:
                seen.append(start.ops)
                yield start
        if not seen and len(trace.ops) > TOO_LONG:
            yield trace

    def _without_parts(self, best: Trace, parts_of: Callable[[Sequence[Op]], list[set[int]]], over: Over) -> Trace:
        """Drops parts, half of them at a time, then a quarter and so on; each size goes once through the trace."""
        size = len(parts_of(best.ops)) // 2
        while size >= 1:
            start = 0
            while start < len(parts := parts_of(best.ops)) and not over():
                gone = set().union(*parts[start : start + size])
                better = self.try_(best.scope, [op for i, op in enumerate(best.ops) if i not in gone])
                if better is not None and len(better.ops) < len(best.ops):
                    best = better
                else:
                    start += size
            size //= 2
        return best

    def _searched(self, best: Trace) -> Trace:
        """Short random episodes, in the scopes of the trace and in small ones."""
        origin = self.trace.scope
        # The original scope is drawn more often, since the violation is known to be possible there.
        scopes = (best.scope, origin, origin, *self.model_type.scopes[:SEARCH_SCOPES])
        for episode in range(SEARCH_EPISODES):
            if len(best.ops) <= self.budget.enough or self.budget.cut(SHARE_OF_SEARCH):
                break
            pick = picker(len(best.ops), episode)
            length = pick(range(self.budget.enough, min(len(best.ops), SEARCH_LENGTH) + 2))
            best = self._better_episode(best, pick, scopes, length)
        return best

    def _searched_in_small_scopes(self, best: Trace) -> Trace:
        """Longer episodes in small scopes alone, where a find can be made shorter than in a large pool."""
        for episode in range(LONG_EPISODES):
            if len(best.ops) <= ENOUGH or self.budget.cut(SHARE_ELSEWHERE):
                break
            best = self._better_episode(best, picker(LONG, episode), self.model_type.scopes[:SEARCH_SCOPES], LONG)
        return best

    def _better_episode(self, best: Trace, pick: Pick, scopes: Sequence[Scope], length: int) -> Trace:
        outcome = Outcome("shrink", sampled=SAMPLED_STEPS)
        found = walk(self.model_type, self.factory, pick(scopes), length, pick, self.watchdog, outcome)
        self.budget.played += outcome.steps + 1
        if found is not None and same_kind(found.law, best.law):
            shorter = self._greedily(found, fewer_ops)
            best = shorter if len(shorter.ops) < len(best.ops) else best
        return best

    def _minimised(self, best: Trace) -> Trace:
        """Everything in turns, the cheapest first, until nothing makes the trace smaller."""
        before = None
        while before is not best:
            before = best
            for transform in (fewer_ops, merged, smaller_scope):
                best = self._greedily(best, transform)
            best = self._with_simpler_ops(best)
            for transform in (without_pairs, smaller_at_once):
                best = self._greedily(best, transform)
        return best

    def _with_simpler_ops(self, best: Trace) -> Trace:
        """Each operation, the last one first, as simple as it can be before the next is looked at."""
        i = len(best.ops) - 1
        while i >= 0:
            for simpler in self.model_type.simpler(best.ops[i]):
                better = self.try_(best.scope, (*best.ops[:i], simpler, *best.ops[i + 1 :]))
                if better is not None and size_of(better) < size_of(best):
                    best = better
                    break
            else:
                i -= 1
            i = min(i, len(best.ops) - 1)
        return best
