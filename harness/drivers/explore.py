"""The exhaustive driver: every operation in every state of a small scope, breadth first.

A target cannot be copied, so each transition starts from a new one and repeats the shortest path to its state.
The first violation found is therefore one of the shortest.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from kvlockstep.drivers.episode import Outcome, failed, run_ops
from kvlockstep.models.model import Divergence, Factory, Model, Scope
from kvlockstep.models.op import Command, NotEnabled, Op
from kvlockstep.watchdog import Watchdog

T = TypeVar("T")


class Unrepeatable(Exception):
    """A path that led to a state leads there no more: the target does not always do the same."""


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


@dataclass
class Exploration:
    """One scope, the states seen in it, and those that wait to be expanded. `exhausted` until something is left out."""

    model_type: type[Model[Any]]
    factory: Factory
    scope: Scope
    watchdog: Watchdog
    ends: float
    outcome: Outcome = field(default_factory=lambda: Outcome("explore", exhausted=True))
    seen: set[Any] = field(default_factory=set)
    waiting: deque[Node] = field(default_factory=deque)

    def begin(self) -> None:
        """The state of a new target."""
        with self._judged([]):
            self._arrive(self._at([]), Node(None, None, 0))

    def expand(self, node: Node) -> None:
        """Every operation in one state, as long as there is time."""
        path, ops = node.path(), list[Op]()
        with self._judged(path):
            ops += proposals(self._at(path), self.model_type.commands)
        for op in ops:
            if time.perf_counter() >= self.ends:
                self.outcome.exhausted = False
                self.waiting.clear()
                break
            self.outcome.steps += 1
            self.outcome.depth = max(self.outcome.depth, node.depth + 1)
            with self._judged([*path, op]):
                model = self._at(path)
                model.forget()
                with contextlib.suppress(NotEnabled):
                    model.step(op)
                    self._arrive(model, Node(node, op, node.depth + 1))
            if self.outcome.failure is not None:
                break

    def _at(self, path: Sequence[Op]) -> Model[Any]:
        """A new target after these operations. Raises Divergence and Unrepeatable."""
        self.watchdog.beat += 1
        model = self.model_type(self.scope, self.factory)
        try:
            for op in path:
                model.redo(op)
        except NotEnabled as error:
            raise Unrepeatable from error
        return model

    def _arrive(self, model: Model[Any], node: Node) -> None:
        state = model.fingerprint()
        self.outcome.absorb(model)
        if state not in self.seen:
            self.seen.add(state)
            self.waiting.append(node)

    @contextlib.contextmanager
    def _judged(self, ops: Sequence[Op]) -> Iterator[None]:
        """Takes a divergence for what these operations do."""
        try:
            yield
        except Unrepeatable:
            self.outcome.exhausted = False
            self.outcome.unsteady += 1
        except Divergence as divergence:
            self.outcome.exhausted = False
            trace = run_ops(self.model_type, self.factory, self.scope, ops, self.watchdog)
            # What is not repeated was slow for once, or does not always do the same: shrinking says so.
            trace = trace or failed(self.model_type, self.scope, ops, [], divergence)
            self.outcome.failure = trace.but(driver="explore")


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
    started = time.perf_counter()
    exploration = Exploration(
        model_type, factory, scope, watchdog, started + (math.inf if seconds is None else seconds)
    )
    outcome = exploration.outcome
    exploration.begin()
    while exploration.waiting and outcome.failure is None:
        node = exploration.waiting.popleft()
        if max_depth is not None and node.depth >= max_depth:
            outcome.exhausted = False
            continue
        exploration.expand(node)
        if progress is not None:
            progress(outcome.steps)
    outcome.states = len(exploration.seen)
    outcome.seconds = time.perf_counter() - started
    return outcome
