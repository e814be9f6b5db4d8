"""Hypothesis: a rule-based state machine made from a model, one rule per command."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar, overload

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import SAMPLED_STEPS, Outcome, answer_text, failed
from kvlockstep.drivers.run import Run
from kvlockstep.models.core.model import Divergence, Factory, Model, Scope
from kvlockstep.models.core.op import Command, NotEnabled, Op, pick_first

T = TypeVar("T")

RUNNER = st.runner()


@functools.cache
def _index(n: int) -> st.SearchStrategy[int]:
    return st.integers(0, n - 1)


class LockstepMachine(RuleBasedStateMachine):
    """Base of the machines; `machine_for` adds one rule per command of a contract.

    Subclass with `target` set to a factory and use `.TestCase` in pytest. `outcome` of the class counts goals;
    `failure` holds the last failing trace.
    """

    model_type: ClassVar[type[Model[Any]]]
    target: ClassVar[Any] = None
    watchdog: ClassVar[Watchdog] = Watchdog(5.0)
    outcome: ClassVar[Outcome]
    failure: ClassVar[Trace | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.outcome = Outcome("hypothesis")
        cls.failure = None

    def __init__(self) -> None:
        super().__init__()
        self.model: Model[Any] | None = None
        self.ops: list[Op] = []
        self.answers: list[str] = []

    def begin(self, scope: Scope) -> None:
        """Makes a new target of this scope."""
        target = type(self).target
        if target is None:
            raise TypeError(f"{type(self).__name__}: set the class attribute `target` to a factory of your manager")
        self.scope = scope
        self._judge(lambda: setattr(self, "model", self.model_type(scope, target)))

    def execute(self, op: Op) -> None:
        """One lockstep step."""
        assert self.model is not None
        model = self.model
        outcome = type(self).outcome
        self.ops.append(op)
        outcome.steps += 1
        try:
            self._judge(lambda: self.answers.append(answer_text(model.step(op))))
        except NotEnabled:
            self.ops.pop()
            outcome.steps -= 1
            return
        outcome.sample(model)

    @property
    def instance(self) -> Any:
        """The object that `target` made for this episode, for your own rules and invariants; None before it begins."""
        judged = getattr(self.model, "judge", self.model)
        return getattr(judged, "adapter", getattr(judged, "target", None))

    def enabled(self, command: Command) -> bool:
        """Tells whether the command proposes anything in this state."""
        assert self.model is not None
        try:
            self.model.propose(command, pick_first)
        except NotEnabled:
            return False
        return True

    def teardown(self) -> None:
        if self.model is not None:
            type(self).outcome.states += 1
            type(self).outcome.absorb(self.model)

    def diverged(self, trace: Trace) -> str:
        """Called with each failing episode; returns the text of the error that Hypothesis then sees."""
        return failure_page(trace)

    def _judge(self, action: Any) -> None:
        self.watchdog.beat += 1
        try:
            with self.watchdog.watching():
                action()
        except Divergence as divergence:
            cls = type(self)
            trace = failed(self.model_type, self.scope, self.ops, self.answers, divergence)
            cls.failure = trace.but(driver="hypothesis", target=getattr(cls.target, "__qualname__", "target"))
            divergence.args = (self.diverged(cls.failure),)
            raise


@st.composite
def _proposal(draw: st.DrawFn, command: Command) -> Op | None:
    """An operation, or None if the draws led nowhere: rejecting them would throw the whole episode away.

    The strategy asks for the machine, so that it is made once for a command: one made in each step would be validated
    in each step, which takes as long as the step.
    """
    machine: LockstepMachine = draw(RUNNER)

    def pick(options: Sequence[T]) -> T:
        n = len(options)
        if n == 0:
            raise NotEnabled
        return options[draw(_index(n))] if n > 1 else options[0]

    assert machine.model is not None
    try:
        return machine.model.propose(command, pick)
    except NotEnabled:
        return None


def _rule_for(command: Command) -> Any:
    def run(self: LockstepMachine, op: Op | None) -> None:
        if op is not None:
            self.execute(op)

    run.__name__ = command.name
    run.__doc__ = command.doc
    made = rule(op=_proposal(command))(run)
    return precondition(lambda self: self.model is not None and self.enabled(command))(made)


M = TypeVar("M", bound=LockstepMachine)


@overload
def machine_for(model_type: type[Model[Any]], target: Factory | None = None) -> type[LockstepMachine]: ...


@overload
def machine_for(model_type: type[Model[Any]], target: Factory | None, base: type[M]) -> type[M]: ...


def machine_for(
    model_type: type[Model[Any]], target: Factory | None = None, base: type[LockstepMachine] = LockstepMachine
) -> type[LockstepMachine]:
    """A state machine class for the contract of `model_type`, on `target` if given, derived from `base`."""

    def begin(self: LockstepMachine, scope: Scope) -> None:
        LockstepMachine.begin(self, scope)

    body: dict[str, Any] = {command.name: _rule_for(command) for command in model_type.commands_for(target)}
    body["begin"] = initialize(scope=st.sampled_from(model_type.scopes))(begin)
    body["model_type"] = model_type
    body["target"] = staticmethod(target) if target is not None else None
    return type(machine_name(model_type.contract), (base,), body)


def machine_name(contract: str) -> str:
    """The name of the machine of a contract: that of kv_manager is KvManagerMachine."""
    return "".join(part.title() for part in contract.split("_")) + "Machine"


def run_machine(run: Run, database: Any, reuse: bool) -> Outcome:
    """Runs the machine for `examples` episodes of up to `steps_per_example` steps, or replays those of the database.

    Hypothesis gives up on a target that does not always do the same; then it begins again, with another seed, for
    what is left.
    """
    machine = machine_for(run.model_type, run.factory)
    machine.watchdog = run.watchdog
    outcome = machine.outcome
    outcome.sampled = 0 if run.samples else SAMPLED_STEPS
    started = time.perf_counter()
    while outcome.states < run.budget.examples and machine.failure is None:
        settings = hypothesis.settings(
            max_examples=run.budget.examples - outcome.states,
            stateful_step_count=run.budget.steps_per_example,
            deadline=None,
            database=database,
            phases=(Phase.reuse if reuse else Phase.generate,),
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
        )
        try:
            run_state_machine_as_test(hypothesis.seed(run.seed + outcome.unsteady)(machine), settings=settings)
            break
        except Flaky:
            outcome.unsteady += 1
        except Exception:
            if machine.failure is None:
                raise
    outcome.failure = machine.failure and machine.failure.but(seed=run.seed)
    outcome.seconds = time.perf_counter() - started
    return outcome
