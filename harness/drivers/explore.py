"""The exhaustive driver: every operation in every state of a small scope, breadth first.

A target cannot be copied, so each transition starts from a new one and repeats the shortest path to its state.
The first violation found is therefore one of the shortest.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from kvlockstep.drivers.episode import Outcome, failed, run_ops
from kvlockstep.models.model import Divergence, Factory, Model, Scope
from kvlockstep.models.op import Command, NotEnabled, Op
from kvlockstep.watchdog import Watchdog

T = TypeVar("T")


class Node(NamedTuple):
    """A state by the operation that reaches it first."""

    parent: Node | None
    op: Op | None
    depth: int

    def path(self) -> list[Op]:
        ops: list[Op] = []
        node: Node | None = self
        while node is not None and node.op is not None:
            ops.append(node.op)
            node = node.parent
        return ops[::-1]


class Script:
    """A pick that takes prescribed choices and remembers how many there were, so that all can be enumerated."""

    def __init__(self) -> None:
        self._choices: list[int] = []
        self._widths: list[int] = []
        self._position = 0

    def __call__(self, options: Sequence[T], /) -> T:
        if not options:
            raise NotEnabled
        if self._position == len(self._choices):
            self._choices.append(0)
            self._widths.append(0)
        self._widths[self._position] = len(options)
        self._position += 1
        return options[self._choices[self._position - 1]]

    def next(self) -> bool:
        """Goes to the next sequence of choices; False when there is none left."""
        del self._choices[self._position :], self._widths[self._position :]
        self._position = 0
        while self._choices:
            if self._choices[-1] + 1 < self._widths[-1]:
                self._choices[-1] += 1
                return True
            self._choices.pop()
            self._widths.pop()
        return False


def proposals(model: Model[Any], commands: Sequence[Command]) -> Iterator[Op]:
    """Every operation that the commands can propose in this state."""
    for command in commands:
        script = Script()
        while True:
            with contextlib.suppress(NotEnabled):
                yield command.propose(model, script)
            if not script.next():
                break


def explore(
    model_type: type[Model[Any]],
    factory: Factory,
    scope: Scope,
    *,
    watchdog: Watchdog,
    seconds: float | None = None,
    max_depth: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Explores one scope. `exhausted` tells whether every reachable state was expanded within time and depth."""
    outcome = Outcome("explore", exhausted=True)
    started = time.perf_counter()
    commands = model_type.commands
    watchdog.beat += 1
    try:
        fresh = model_type(scope, factory)
    except Divergence:
        outcome.failure = run_ops(model_type, factory, scope, (), watchdog)
        return outcome
    outcome.absorb(fresh)
    seen = {fresh.fingerprint()}
    queue = deque([Node(None, None, 0)])
    while queue and outcome.failure is None:
        node = queue.popleft()
        if max_depth is not None and node.depth >= max_depth:
            outcome.exhausted = False
            continue
        path = node.path()
        ops = list(proposals(_at(model_type, factory, scope, path, watchdog), commands))
        for op in ops:
            if seconds is not None and time.perf_counter() - started >= seconds:
                outcome.exhausted = False
                queue.clear()
                break
            model = _at(model_type, factory, scope, path, watchdog)
            model.reach.clear()
            outcome.steps += 1
            outcome.depth = max(outcome.depth, node.depth + 1)
            try:
                model.step(op)
            except NotEnabled:
                continue
            except Divergence as divergence:
                trace = run_ops(model_type, factory, scope, [*path, op], watchdog)
                # What is not repeated was slow for once, or does not always do the same: shrinking says so.
                trace = trace or failed(model_type, scope, [*path, op], [], divergence)
                outcome.failure = trace.but(driver="explore")
                break
            outcome.absorb(model)
            state = model.fingerprint()
            if state not in seen:
                seen.add(state)
                queue.append(Node(node, op, node.depth + 1))
        if progress is not None:
            progress(outcome.steps)
    outcome.states = len(seen)
    outcome.seconds = time.perf_counter() - started
    return outcome


def _at(
    model_type: type[Model[Any]], factory: Factory, scope: Scope, path: Sequence[Op], watchdog: Watchdog
) -> Model[Any]:
    watchdog.beat += 1
    model = model_type(scope, factory)
    for op in path:
        model.redo(op)
    return model
