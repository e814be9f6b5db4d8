"""The exhaustive driver: every operation in every state of small scopes, breadth first.

A target cannot be copied, so each transition starts from a new one and repeats the shortest path to its state.
The first violation found in a scope is therefore one of the shortest. Budgets count every step played:
those repeated on the way to a state, the one that leaves it, and making the target. An outcome counts those that leave.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Outcome, common, failed, run_ops
from kvlockstep.drivers.run import Run
from kvlockstep.models.core.model import Divergence, Factory, Model, Scope
from kvlockstep.models.core.op import Command, NotEnabled, Op

T = TypeVar("T")


class Unrepeatable(Exception):
    """A path that led to a state leads there no more: the target does not always do the same."""


class Node(NamedTuple):
    """A state, by the first operation that leads to it."""

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
                yield model.propose(command, script)
            if not script.next():
                break


@dataclass
class Budget:
    """The steps that several explorations may play together. After `seconds` they are cut off, and `cut` is set.

    `stuck` says in which state a look did not return; no further step is played then.
    """

    steps: float = math.inf
    seconds: float = math.inf
    played: int = 0
    cut: bool = False
    stuck: str = ""
    _began: float = field(default_factory=time.perf_counter)

    def spent(self) -> bool:
        """Tells whether no further step may be played."""
        if self.stuck or self.played >= self.steps:
            return True
        self.cut = self.cut or time.perf_counter() - self._began >= self.seconds
        return self.cut

    def cut_text(self) -> str:
        """A sentence on where the time ran out, or on what did not return; nothing if neither is so."""
        if self.stuck:
            return f"explore stopped: {self.stuck}"
        wanted = "" if math.isinf(self.steps) else f" of {self.steps:,}"
        limit = f"explore stopped at its limit of {self.seconds:,g} s after {self.played:,}{wanted} steps"
        return limit if self.cut else ""


@dataclass
class Exploration:
    """One scope, the states seen in it, and those that wait to be expanded. `exhausted` until something is left out."""

    model_type: type[Model[Any]]
    factory: Factory
    scope: Scope
    watchdog: Watchdog
    budget: Budget
    max_depth: int | None = None
    played: int = 0
    outcome: Outcome = field(default_factory=lambda: Outcome("explore", exhausted=True))
    seen: set[Any] = field(default_factory=set)
    waiting: deque[Node] = field(default_factory=deque)

    def begin(self) -> None:
        """The state of a new target."""
        with self._judged([]):
            self._arrive(self._at([]), Node(None, None, 0))

    def goes_on(self) -> bool:
        """Tells whether a state waits that is not too deep."""
        while self.waiting and self.max_depth is not None and self.waiting[0].depth >= self.max_depth:
            self.outcome.exhausted = False
            self.waiting.popleft()
        return bool(self.waiting)

    def expand(self) -> None:
        """Every operation in the next state, as long as the budget lasts."""
        node = self.waiting.popleft()
        path, ops = node.path(), list[Op]()
        with self._judged(path):
            ops += proposals(self._at(path), self.model_type.commands)
        for op in ops:
            if self.budget.spent():
                self.outcome.exhausted = False
                break
            self.outcome.steps += 1
            self.outcome.depth = max(self.outcome.depth, node.depth + 1)
            with self._judged([*path, op]):
                model = self._at(path)
                model.forget()
                self._count(1)
                with contextlib.suppress(NotEnabled):
                    model.step(op)
                    self._arrive(model, Node(node, op, node.depth + 1))
            if self.outcome.failure is not None:
                break

    def end(self) -> Outcome:
        """The results for the scope."""
        if self.waiting:
            self.outcome.exhausted = False
        self.outcome.states = len(self.seen)
        return self.outcome

    def _count(self, steps: int) -> None:
        self.played += steps
        self.budget.played += steps

    def _at(self, path: Sequence[Op]) -> Model[Any]:
        """A new target after these operations. Raises Divergence and Unrepeatable."""
        self.watchdog.beat += 1
        self._count(len(path) + 1)
        model = self.model_type(self.scope, self.factory)
        try:
            for op in path:
                model.redo(op)
        except NotEnabled as error:
            raise Unrepeatable from error
        return model

    def _arrive(self, model: Model[Any], node: Node) -> None:
        try:
            state = model.fingerprint()
        except Divergence as divergence:
            # The judge has not asked for that yet, so that a replay of these operations holds: the other drivers find
            # the operation that shows it. Here every state would take as long.
            where = f"after {node.op.name}" if node.op is not None else "of a new target"
            self.budget.stuck = f"in the state {where}, {divergence.message}"
            self.outcome.exhausted = False
            return
        self.outcome.absorb(model)
        if state not in self.seen:
            self.seen.add(state)
            self.waiting.append(node)

    @contextlib.contextmanager
    def _judged(self, ops: Sequence[Op]) -> Iterator[None]:
        """Makes a divergence in the block the failure of the scope, with these operations as its trace."""
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


@dataclass(frozen=True)
class Explore:
    """The exhaustive driver of several scopes together, by default of all small ones of the contract.

    What is left out of `steps` and `seconds` is as the budget of the run says; `math.inf` is no limit. States more than
    `max_depth` operations deep are not expanded.
    """

    name = "explore"
    about = "every operation in every state of small scopes, breadth first"

    scopes: tuple[Scope, ...] | None = None
    steps: float | None = None
    seconds: float | None = None
    max_depth: int | None = None

    def run(self, run: Run) -> Outcome:
        """Explores the scopes in turns, up to the first failure.

        The scope in which least was played goes next, so that what an exhausted one leaves is for the others.
        `exhausted` tells whether every reachable state was expanded within budget and depth, `cut` whether `seconds`
        ended it.
        """
        started = time.perf_counter()
        budget = Budget(
            run.budget.explore_steps if self.steps is None else self.steps,
            run.budget.explore_limit if self.seconds is None else self.seconds,
        )
        scopes = run.model_type.small_scopes_of(run.factory) if self.scopes is None else self.scopes
        explorations = [
            Exploration(run.model_type, run.factory, scope, run.watchdog, budget, self.max_depth) for scope in scopes
        ]
        for exploration in explorations:
            exploration.begin()
        failed_in = next((e for e in explorations if e.outcome.failure is not None), None)
        while failed_in is None and not budget.spent():
            running = [exploration for exploration in explorations if exploration.goes_on()]
            if not running:
                break
            current = min(running, key=lambda exploration: exploration.played)
            current.expand()
            failed_in = current if current.outcome.failure is not None else None
            if run.progress is not None:
                run.progress(sum(exploration.outcome.steps for exploration in explorations))
        total = Outcome(self.name, exhausted=True)
        for exploration in explorations:
            _add(total, exploration.end())
        total.cut = budget.cut_text()
        total.seconds = time.perf_counter() - started
        return total


def _add(total: Outcome, done: Outcome) -> None:
    total.steps += done.steps
    total.states += done.states
    total.depth = max(total.depth, done.depth)
    total.exhausted = bool(total.exhausted and done.exhausted)
    total.unsteady += done.unsteady
    total.reach += done.reach
    total.evaluated += done.evaluated
    total.not_checked = done.not_checked
    total.unreachable = common(total.unreachable, done.unreachable)
    total.facts = total.facts or done.facts
    total.failure = total.failure or done.failure
