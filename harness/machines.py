"""The Hypothesis machines, for suites that run or extend them.

A machine's `TestCase` ends at the first episode that breaks a law and hands its operations to the shrinker of `check`,
which knows what a shorter episode of the contract looks like and is much faster than Hypothesis. Failures of rules and
invariants that a subclass adds stay with Hypothesis, as do episodes that fail only with such rules in them.
"""

from __future__ import annotations

import functools
import unittest
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from hypothesis import settings as Settings
from hypothesis.stateful import (
    INITIALIZE_RULE_MARKER,
    INVARIANT_MARKER,
    RULE_MARKER,
    TestCaseProperty,
    run_state_machine_as_test,
)

from kvlockstep.core.errors import UsageError
from kvlockstep.core.failure_page import save_found
from kvlockstep.core.profiles import Profile, profile_of
from kvlockstep.core.trace import Trace
from kvlockstep.drivers.episode import Outcome, run_ops
from kvlockstep.drivers.hypothesis_machine import LockstepMachine, machine_for, machine_name
from kvlockstep.drivers.shrink import same_kind
from kvlockstep.models.core.model import Divergence, Factory
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.properties.law import TERMINATION
from kvlockstep.runs.check import FAILURES, CheckFailed
from kvlockstep.runs.play_trace import replay_trace
from kvlockstep.runs.results import CheckResult, TargetResult, result_of
from kvlockstep.runs.shrinking import shrink_failure
from kvlockstep.targets.registry import Target, check_contract, from_factory

MARKERS = RULE_MARKER, INITIALIZE_RULE_MARKER, INVARIANT_MARKER
NOT_ALONE = (
    "The operations above hold when they are played without the rules and invariants that {name} adds. "
    "So no trace is saved, and Hypothesis's own steps follow."
)

# Set while a TestCase runs: a direct call of run_state_machine_as_test gets the failure as Hypothesis reports it.
_hands_over = ContextVar("_hands_over", default=False)


class _Failed(BaseException):
    """Carries a failing trace out of Hypothesis.

    Hypothesis lets a BaseException through at once. An Exception it would keep as an example, and shrink for minutes.
    """

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace.law)
        self.trace = trace


class _TestCases:
    """The attribute `TestCase` of a machine: Hypothesis's, with a `runTest` of ours."""

    def __get__(self, instance: LockstepMachine | None, machine_type: type[LockstepMachine]) -> Any:
        return _test_case(machine_type)


class CheckedMachine(LockstepMachine):
    """A machine whose `TestCase` shrinks and saves failing episodes as `check` does.

    The test raises CheckFailed, an AssertionError, with the failure page; UsageError if `target` is unusable.
    """

    TestCase = _TestCases()

    def diverged(self, trace: Trace) -> str:
        page = super().diverged(trace)
        if not _hands_over.get():
            return page
        if not _adds_rules(type(self)) or self._fails_alone(trace):
            raise _Failed(trace) from None
        return f"{page}\n{NOT_ALONE.format(name=type(self).__name__)}"

    def _fails_alone(self, trace: Trace) -> bool:
        with self.watchdog.watching():
            again = run_ops(self.model_type, type(self).target, trace.scope, trace.ops, self.watchdog)
        return again is not None and same_kind(again.law, trace.law)


def _adds_rules(machine_type: type[LockstepMachine]) -> bool:
    """True if a subclass or a mixin brings rules or invariants besides those that `machine` makes."""
    others = (cls for cls in machine_type.__mro__ if "model_type" not in vars(cls))
    return any(hasattr(member, marker) for cls in others for member in vars(cls).values() for marker in MARKERS)


@functools.cache
def _test_case(machine_type: type[LockstepMachine]) -> type[unittest.TestCase]:
    theirs: Any = TestCaseProperty().__get__(None, machine_type)

    class TestCase(theirs):  # type: ignore[misc]
        def runTest(self) -> None:
            __tracebackhide__ = True
            try:
                run_and_shrink(machine_type, self.settings)
            except (CheckFailed, Divergence, UsageError) as error:
                # What they say is in their text: the frames below are ours and Hypothesis's.
                raise error.with_traceback(None) from None

    # Hypothesis and its pytest plugin know their tests by these attributes.
    vars(TestCase.runTest).update(vars(theirs.runTest))
    TestCase.__name__, TestCase.__qualname__ = theirs.__name__, theirs.__qualname__
    return TestCase


def run_and_shrink(machine_type: type[LockstepMachine], settings: Settings) -> None:
    """Runs a machine under Hypothesis; a failure of the target's own is shrunk, saved in FAILURES and raised.

    Raises CheckFailed for it, UsageError for a target that is missing or unusable, and what Hypothesis raises.
    """
    __tracebackhide__ = True
    if machine_type.target is None:
        raise UsageError(f"{machine_type.__name__}: set the class attribute `target` to a factory of your manager")
    target = from_factory(machine_type.model_type.contract, machine_type.target)
    profile = replace(profile_of("quick"), step_seconds=machine_type.watchdog.limit)
    failure = _first_failure(machine_type, settings)
    if failure is not None and _slow_for_once(target, failure, profile):
        failure = _first_failure(machine_type, settings)
    if failure is None:
        return
    short = shrink_failure(target, failure.but(target=target.name), profile)
    outcome = Outcome("hypothesis", machine_type.outcome.steps, machine_type.outcome.states, failure=short)
    run = result_of(target.contract, target.name, outcome, save_found(short, FAILURES))
    raise CheckFailed(CheckResult([TargetResult(target.contract, target.name, [run])]))


def _first_failure(machine_type: type[LockstepMachine], settings: Settings) -> Trace | None:
    __tracebackhide__ = True
    # Operations that a symbolic backend proposes mean nothing once its run is over.
    token = _hands_over.set(settings.backend == "hypothesis")
    try:
        run_state_machine_as_test(machine_type, settings=settings)
    except _Failed as failed:
        return failed.trace
    finally:
        _hands_over.reset(token)
    return None


def _slow_for_once(target: Target, trace: Trace, profile: Profile) -> bool:
    """True if a call that was cut off returns when it is repeated, as happens on a busy machine."""
    return trace.law == TERMINATION.id and replay_trace(target, trace, profile) is None


def machine(contract: str, target: Factory | None = None) -> type[CheckedMachine]:
    """A rule-based state machine of a contract, one rule per command, on the factory `target` if given.

    Use `machine("kv_manager", make).TestCase` in pytest, or subclass it, add rules and invariants, and set the
    class attribute `target`. Raises UsageError for an unknown contract.
    """
    return machine_for(model_of(check_contract(contract)), target, CheckedMachine)


# KvManagerMachine is the machine of kv_manager, and so on: each is made when it is first asked for.
MACHINES = {machine_name(contract): contract for contract in MODELS}
__all__ = ["CheckedMachine", "LockstepMachine", "machine", *MACHINES]  # noqa: PLE0604


def __getattr__(name: str) -> type[CheckedMachine]:
    if name not in MACHINES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its machines are {', '.join(MACHINES)}")
    found = machine(MACHINES[name])
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
