"""Makes a failing trace short: drops operations, then simplifies arguments and scope, keeping the violated law."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Outcome, run_ops
from kvlockstep.drivers.random_walk import picker, walk
from kvlockstep.models.core.model import Factory, Model, Scope
from kvlockstep.models.core.op import Op, Pick
from kvlockstep.models.requests.shrinking import by_request, without_forks
from kvlockstep.properties.law import TERMINATION

PAIRS_UP_TO = 24
LONG, TOO_LONG = 60, 120
STARTS = 4
ENOUGH = 9
SHORT_ENOUGH = 4
SEARCH_EPISODES, LONG_EPISODES = 3_000, 600
SEARCH_SCOPES = 6
SEARCH_LENGTH = 24
CHILD_STEPS = 50
HANG_STEPS = 1_000

# How much of the budget is spent when a long trace is no longer dropped from thoroughly, when it is no longer swept
# through, and when each further way ends, so that simpler arguments and scopes always get their turn.
SHARE_BEFORE_SWEEPS, SHARE_OF_SWEEPS, SHARE_OF_SEARCH, SHARE_OF_RESWEEP, SHARE_ELSEWHERE = 0.3, 0.5, 0.65, 0.8, 0.95

Candidate = tuple[Scope, Sequence[Op]]
Attempt = Callable[[Scope, Sequence[Op]], Trace | None]
# A leak shows as accounting while requests are live, and as leak_freedom when none is.
ONE_KIND = frozenset({"accounting", "leak_freedom"})

# Calls of a trace that hangs are cut off after this, while it is made short.
HANG_SECONDS = 0.4

RunOps = Callable[[type[Model[Any]], Factory, Scope, Sequence[Op], Watchdog], Trace | None]


def shrink(
    model_type: type[Model[Any]],
    factory: Factory,
    trace: Trace,
    watchdog: Watchdog,
    steps: int = 120_000,
    seconds: float = math.inf,
    run: RunOps = run_ops,
) -> Trace:
    """The shortest trace found that violates the same law; marked flaky if `trace` does not repeat.

    It stops after `steps` played, so that the result does not depend on how fast the machine is; `seconds` is a limit
    for calls that are slow beyond all reason. Making a target counts as a step; a child process and a time-out count
    as several, for the time that they take. The trace is marked unfinished if there was something left to try.
    Calls of a trace that hangs are cut off after HANG_SECONDS; if the result is only slow, `trace` stays as it is.
    """
    hangs = trace.law == TERMINATION.id
    started = time.perf_counter()
    played = 0
    unfinished = False

    def count(more: int) -> None:
        nonlocal played
        played += more

    def expired(share: float = 1.0) -> bool:
        return played > share * steps or time.perf_counter() > started + seconds

    def leaves_out(share: float = 1.0) -> bool:
        nonlocal unfinished
        over = expired(share)
        unfinished = unfinished or over
        return over

    def attempt(scope: Scope, ops: Sequence[Op]) -> Trace | None:
        if leaves_out():
            return None
        again = run(model_type, factory, scope, ops, watchdog)
        cut_off = again is not None and again.law == TERMINATION.id
        count(len(ops) + 1 + CHILD_STEPS * (run is not run_ops) + HANG_STEPS * cut_off)
        return again if again is not None and same_kind(again.law, trace.law) else None

    def until(share: float) -> Attempt:
        return lambda scope, ops: None if expired(share) else attempt(scope, ops)

    with watchdog.at_most(HANG_SECONDS if hangs else watchdog.limit):
        best = attempt(trace.scope, trace.ops)
        if best is None:
            return trace.but(flaky=True)
        if model_type.shortcuts(best.ops, best.answers) is None:
            best = _greedily(model_type, best, _fewer_ops, until(SHARE_BEFORE_SWEEPS))
        if len(best.ops) > LONG:
            best = _sweep(model_type, best, attempt, lambda: expired(SHARE_OF_SWEEPS))
        for transform in (_fewer_ops, _fewer_forks):
            best = _greedily(model_type, best, transform, attempt)
        if len(best.ops) > ENOUGH:
            best = _sweep(model_type, best, attempt, lambda: expired(SHARE_OF_SWEEPS))
        search = None
        if run is run_ops and not hangs:
            search = Search(model_type, factory, trace, attempt, watchdog, count)
            best = search.shorter(best, lambda: leaves_out(SHARE_OF_SEARCH))
        best = _minimise(model_type, best, attempt)
        if len(best.ops) > ENOUGH:
            best = _minimise(
                model_type, _sweep(model_type, best, attempt, lambda: leaves_out(SHARE_OF_RESWEEP)), attempt
            )
        if search is not None and len(best.ops) > ENOUGH:
            best = _minimise(model_type, search.elsewhere(best, lambda: leaves_out(SHARE_ELSEWHERE)), attempt)
        for tidier in model_type.tidy(best.ops):
            best = attempt(best.scope, tidier) or best
    repeats = run(model_type, factory, best.scope, best.ops, watchdog)
    if hangs and repeats is None:
        best = trace
        repeats = run(model_type, factory, best.scope, best.ops, watchdog)
    if repeats is not None and repeats.law == best.law:
        # While a hang is made short its calls are cut off early; the message is that of the full limit.
        best = repeats
    return best.but(
        target=trace.target,
        driver=trace.driver,
        seed=trace.seed,
        original=trace.original,
        flaky=repeats is None or repeats.law != best.law,
        unfinished=unfinished,
    )


def same_kind(law: str, other: str) -> bool:
    """Whether two violations are of one kind, so that a shorter trace with the other law stands for the same defect."""
    return law == other or {law, other} <= ONE_KIND


def _sweep(model_type: type[Model[Any]], trace: Trace, attempt: Attempt, expired: Callable[[], bool]) -> Trace:
    """A long trace without most of what it does not need, by whichever way makes it shortest."""
    best = trace
    for start in _starts(model_type, trace, attempt):
        short = _without_parts(start, by_request, attempt, expired)
        short = _greedily(model_type, short, _smaller_scope, attempt)
        short = _without_parts(short, _each, attempt, expired)
        best = short if len(short.ops) < len(best.ops) else best
        if expired() or len(best.ops) <= ENOUGH:
            return best
    if best is not trace:
        best = _sweep(model_type, best, attempt, expired)
    if len(best.ops) > ENOUGH and len(trace.ops) <= TOO_LONG:
        short = _greedily(model_type, trace, _fewer_ops, attempt)
        best = short if len(short.ops) < len(best.ops) else best
    return best


def _starts(model_type: type[Model[Any]], trace: Trace, attempt: Attempt) -> Iterator[Trace]:
    """Up to STARTS traces that shortcuts lead to, the others not much longer than the first.

    Where there are none, a trace too long for more thorough ways.
    """
    seen: list[tuple[Op, ...]] = []
    for ops in model_type.shortcuts(trace.ops, trace.answers) or ():
        if len(seen) == STARTS:
            break
        longest = STARTS * len(seen[0]) if seen else len(trace.ops)
        start = attempt(trace.scope, ops) if len(ops) < min(longest, len(trace.ops)) else None
        if start is not None and len(start.ops) < len(trace.ops) and start.ops not in seen:
            seen.append(start.ops)
            yield start
    if not seen and len(trace.ops) > TOO_LONG:
        yield trace


def _without_parts(
    best: Trace, parts_of: Callable[[Sequence[Op]], list[set[int]]], attempt: Attempt, expired: Callable[[], bool]
) -> Trace:
    """Drops parts, half of them at a time, then a quarter and so on; of each size it goes once through the trace."""
    size = len(parts_of(best.ops)) // 2
    while size >= 1:
        start = 0
        while start < len(parts := parts_of(best.ops)) and not expired():
            gone = set().union(*parts[start : start + size])
            better = attempt(best.scope, [op for i, op in enumerate(best.ops) if i not in gone])
            if better is not None and len(better.ops) < len(best.ops):
                best = better
            else:
                start += size
        size //= 2
    return best


def _each(ops: Sequence[Op]) -> list[set[int]]:
    return [{i} for i in range(len(ops))]


def _minimise(model_type: type[Model[Any]], best: Trace, attempt: Attempt) -> Trace:
    before = None
    while before is not best:
        before = best
        for transform in (_fewer_ops, _fewer_forks, _smaller_scope):
            best = _greedily(model_type, best, transform, attempt)
        best = _simpler_ops(model_type, best, attempt)
        best = _greedily(model_type, best, _without_pairs, attempt)
        best = _greedily(model_type, best, _smaller_at_once, attempt)
    return best


@dataclass(frozen=True)
class Search:
    """Random episodes that violate the law of `origin`: dropping operations can end in a local minimum."""

    model_type: type[Model[Any]]
    factory: Factory
    origin: Trace
    attempt: Attempt
    watchdog: Watchdog
    count: Callable[[int], None]

    def shorter(self, best: Trace, expired: Callable[[], bool]) -> Trace:
        """By short episodes, in the scopes of the trace and in small ones."""
        scopes = (best.scope, self.origin.scope, self.origin.scope, *self.model_type.scopes[:SEARCH_SCOPES])
        for episode in range(SEARCH_EPISODES):
            if len(best.ops) <= SHORT_ENOUGH or expired():
                break
            pick = picker(len(best.ops), episode)
            length = pick(range(SHORT_ENOUGH, min(len(best.ops), SEARCH_LENGTH) + 2))
            best = self._better(best, pick, scopes, length)
        return best

    def elsewhere(self, best: Trace, expired: Callable[[], bool]) -> Trace:
        """By longer ones, in small scopes alone, where what they find can be made shorter than in a large pool."""
        for episode in range(LONG_EPISODES):
            if len(best.ops) <= ENOUGH or expired():
                break
            best = self._better(best, picker(LONG, episode), self.model_type.scopes[:SEARCH_SCOPES], LONG)
        return best

    def _better(self, best: Trace, pick: Pick, scopes: Sequence[Scope], length: int) -> Trace:
        outcome = Outcome("shrink")
        found = walk(self.model_type, self.factory, pick(scopes), length, pick, self.watchdog, outcome)
        self.count(outcome.steps + 1)
        if found is not None and same_kind(found.law, best.law):
            shorter = _greedily(self.model_type, found, _fewer_ops, self.attempt)
            best = shorter if len(shorter.ops) < len(best.ops) else best
        return best


def _greedily(
    model_type: type[Model[Any]],
    best: Trace,
    transform: Callable[[type[Model[Any]], Trace], Iterator[Candidate]],
    attempt: Attempt,
) -> Trace:
    found = True
    while found:
        found = False
        for scope, ops in transform(model_type, best):
            if (better := attempt(scope, ops)) is not None and _size(better) < _size(best):
                best, found = better, True
                break
    return best


def _size(trace: Trace) -> tuple[int, int, int, str]:
    """What shrinking makes smaller: operations, then what is read of them, then the scope."""
    ops, scope = " ".join(map(str, trace.ops)), str(trace.scope.to_json())
    return len(trace.ops), len(ops), len(scope), ops + scope


def _fewer_ops(_: type[Model[Any]], trace: Trace) -> Iterator[Candidate]:
    ops = trace.ops
    size = len(ops) // 2
    while size >= 1:
        for start in range(len(ops) - size, -1, -size):
            yield trace.scope, ops[:start] + ops[start + size :]
        size //= 2


def _without_pairs(_: type[Model[Any]], trace: Trace) -> Iterator[Candidate]:
    ops = trace.ops
    if len(ops) > PAIRS_UP_TO:
        return
    for j in range(len(ops) - 1, 0, -1):
        for i in range(j - 1, -1, -1):
            yield trace.scope, ops[:i] + ops[i + 1 : j] + ops[j + 1 :]


def _smaller_scope(model_type: type[Model[Any]], trace: Trace) -> Iterator[Candidate]:
    yield from model_type.smaller(trace.scope, trace.ops)


def _smaller_at_once(model_type: type[Model[Any]], trace: Trace) -> Iterator[Candidate]:
    yield from model_type.smaller_at_once(trace.scope, trace.ops)


def _fewer_forks(_: type[Model[Any]], trace: Trace) -> Iterator[Candidate]:
    return ((trace.scope, ops) for ops in without_forks(trace.ops))


def _simpler_ops(model_type: type[Model[Any]], best: Trace, attempt: Attempt) -> Trace:
    """Each operation, the last one first, as simple as it can be before the next is looked at."""
    i = len(best.ops) - 1
    while i >= 0:
        for simpler in model_type.simpler(best.ops[i]):
            better = attempt(best.scope, (*best.ops[:i], simpler, *best.ops[i + 1 :]))
            if better is not None and _size(better) < _size(best):
                best = better
                break
        else:
            i -= 1
        i = min(i, len(best.ops) - 1)
    return best
