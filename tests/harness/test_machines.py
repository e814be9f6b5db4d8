"""Machines that fail: shrunk and saved as `check` does, and what stays with Hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import seed, settings
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from kvlockstep import machines
from kvlockstep.commands.cli import main
from kvlockstep.core.errors import UsageError
from kvlockstep.core.failure_page import FLAKY_SAYS
from kvlockstep.core.profiles import profile_of
from kvlockstep.core.trace import load_trace, replay_line
from kvlockstep.drivers.hypothesis_machine import machine_for
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.machines import SlotPoolMachine, machine
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.reference.slot_pool import SlotPool
from kvlockstep.runs.check import CheckFailed
from kvlockstep.runs.play_trace import replay_trace
from kvlockstep.targets import resolve
from kvlockstep.targets.registry import from_factory

Broken = FAULTS["pool-occupy-toggles"].make


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(machine_type, database=None, examples=300):
    """Runs the machine as a suite does, with the same episodes each time."""
    machine_type = seed(0)(machine_type)
    machine_type.TestCase.settings = settings(database=database, deadline=None, max_examples=examples)
    machine_type.TestCase("runTest").debug()


def saved(directory):
    return sorted(directory.glob(".kvlockstep/failures/*.jsonl"))


@pytest.mark.parametrize("fault", ["pool-occupy-toggles", "bp-chain-no-parent", "kv-abort-unwritten"])
def test_a_failure_is_shrunk_and_saved(fault, tmp_path):
    fault = FAULTS[fault]
    with pytest.raises(CheckFailed) as failed:
        run(machine(fault.contract, fault.make))
    (path,) = saved(tmp_path)
    trace = load_trace(path, fault.contract)
    assert (trace.driver, trace.flaky) == ("hypothesis", False)
    assert len(trace.ops) <= 4
    target = from_factory(fault.contract, fault.make)
    assert replay_trace(target, trace, profile_of("quick")).law == trace.law
    headline, page = str(failed.value).split("\n\n", 1)
    assert headline == f"{trace.law}: {trace.message}"
    assert page.startswith(f"{fault.contract} on {target.name} - VIOLATED {trace.law} at step {len(trace.ops)}")
    assert page.endswith(f"replay: {replay_line(target.name, path.relative_to(tmp_path))}")


def test_there_is_a_machine_for_each_contract():
    for contract in CONTRACTS:
        name = "".join(part.title() for part in contract.split("_")) + "Machine"
        made = getattr(machines, name)
        assert made.model_type.contract == contract
        assert made is getattr(machines, name)
        assert name in machines.__all__
        assert name in dir(machines)
    with pytest.raises(AttributeError, match=r"no attribute 'KvMangerMachine'; its machines are SlotPoolMachine, "):
        _ = machines.KvMangerMachine


def test_the_saved_trace_is_one_that_replay_plays(tmp_path, capsys):
    class Mine(SlotPoolMachine):
        target = Broken

    with pytest.raises(CheckFailed):
        run(Mine)
    with pytest.raises(SystemExit, match="1"):
        main(["replay", str(saved(tmp_path)[0]), "--trust"])
    assert "VIOLATED no_aliasing" in capsys.readouterr().out


def test_the_error_shows_no_frames_below_the_test():
    with pytest.raises(CheckFailed) as failed:
        run(machine("slot_pool", Broken))
    assert failed.value.__suppress_context__
    assert failed.traceback[-1].name == "runTest"
    assert failed.traceback[-1].ishidden(failed)


def test_an_invariant_of_a_subclass_is_shrunk_by_hypothesis(tmp_path):
    class Mine(SlotPoolMachine):
        target = SlotPool

        @invariant()
        def few_steps(self):
            assert len(self.ops) < 3, "third step"

    with pytest.raises(AssertionError, match="third step") as failed:
        run(Mine)
    assert not isinstance(failed.value, CheckFailed)
    assert "\n".join(failed.value.__notes__).count("op=Op(") == 3
    assert not saved(tmp_path)


class Taking(SlotPoolMachine):
    """A rule takes a slot behind the back of the model, which notices at the next operation."""

    @precondition(lambda self: self.model is not None and self.model.target.free_count > 0)
    @rule()
    def take(self):
        self.model.target.alloc()


def test_a_law_that_only_breaks_with_rules_of_a_subclass_is_shrunk_by_hypothesis(tmp_path):
    class Mine(Taking):
        target = SlotPool

    with pytest.raises(Divergence, match="they are played without the rules and invariants that Mine adds") as failed:
        run(Mine)
    notes = "\n".join(failed.value.__notes__)
    assert notes.count("state.take()") == 1
    assert notes.count("op=Op(") == 1
    assert not saved(tmp_path)


def test_a_law_that_breaks_without_the_rules_of_a_subclass_is_ours(tmp_path):
    class Mine(SlotPoolMachine):
        target = Broken

        @rule()
        def look(self):
            assert self.model.target.free_count >= 0

    with pytest.raises(CheckFailed, match="VIOLATED no_aliasing at step 2 of 2"):
        run(Mine)
    assert len(saved(tmp_path)) == 1


def test_rules_of_a_mixin_are_rules_of_the_subclass(tmp_path):
    class Mixin:
        @rule()
        def take(self):
            if self.model.target.free_count > 0:
                self.model.target.alloc()

    class Mine(SlotPoolMachine, Mixin):
        target = SlotPool

    with pytest.raises(Divergence, match="that Mine adds"):
        run(Mine)
    assert not saved(tmp_path)


class FailsOnce(SlotPool):
    """Keeps in its class what belongs into the object: the first slot that all of them give out is a wrong one."""

    given = 0

    def alloc(self):
        FailsOnce.given += 1
        return super().alloc() if FailsOnce.given != 1 else super().alloc() + 1


def test_a_target_that_does_not_repeat_is_said_to_be_flaky(tmp_path):
    FailsOnce.given = 0
    with pytest.raises(CheckFailed, match="FLAKY, it did not repeat") as failed:
        run(machine("slot_pool", FailsOnce))
    assert FLAKY_SAYS in str(failed.value)
    assert len(saved(tmp_path)) == 1


def test_the_next_run_plays_what_failed_first_and_passes_when_it_is_mended():
    database = InMemoryExampleDatabase()

    class Mine(SlotPoolMachine):
        target = Broken

    with pytest.raises(CheckFailed):
        run(Mine, database)
    episodes = Mine.outcome.states
    with pytest.raises(CheckFailed):
        run(Mine, database)
    assert Mine.outcome.states == episodes + 1
    Mine.target = SlotPool
    run(Mine, database, examples=10)
    assert not any(database.data.values())


def test_hypothesis_itself_sees_a_divergence_where_it_runs_a_machine():
    with pytest.raises(Divergence, match="VIOLATED no_aliasing") as failed:
        run_state_machine_as_test(machine("slot_pool", Broken), settings=settings(database=None, deadline=None))
    assert "state.occupy(op=Op('occupy', slot=0))" in "\n".join(failed.value.__notes__)


def test_an_unusable_target_is_a_usage_error():
    with pytest.raises(UsageError, match="SlotPoolMachine: set the class attribute `target`"):
        run(SlotPoolMachine)
    with pytest.raises(UsageError, match="lacks"):
        run(machine("slot_pool", lambda slots: object()))


@pytest.mark.parametrize("contract", MODELS)
def test_a_rule_of_your_own_reaches_the_target(contract):
    """`instance` is None before the episode begins, then what the factory made."""
    made = []

    def remembering(*sizes):
        made.append(resolve(contract, "reference").factory(*sizes))
        return made[-1]

    machine_type = machine_for(model_of(contract), remembering)
    driven = machine_type()
    assert driven.instance is None
    driven.model = driven.model_type(driven.model_type.small_scopes[0], remembering)
    assert driven.instance is made[-1]
