"""The score: what is caught, by which law, and what fails the gate."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from kvlockstep.commands.cli import cli
from kvlockstep.core.profiles import profile_of
from kvlockstep.core.trace import Trace
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.impl.faulty.fault import Fault
from kvlockstep.models.core.op import Op
from kvlockstep.models.registry import MODELS
from kvlockstep.reference.slot_pool import SlotPool
from kvlockstep.runs.fault_scores import FaultScore, Score, Sighting
from kvlockstep.runs.score import score
from kvlockstep.targets.registry import OWN_TARGETS, resolve

QUICK = profile_of("quick")
SHORT = replace(QUICK, random_steps=2_000, explore_steps=20_000, examples=5)


def test_a_contract_is_scored_with_thorough_and_seed():
    result = score(SHORT, contracts=["block_stack"], thorough=True, jobs=1)
    assert result.verdict == "holds"
    assert {fault.id for fault in result.faults} == {f.id for f in FAULTS.values() if f.contract == "block_stack"}
    for fault in result.faults:
        assert {s.driver for s in fault.sightings} == {"explore", "hypothesis", "random"}
        assert fault.seeds == [0, 1, 2]
        assert len(fault.trace.ops) <= fault.first.steps
    assert [clean.verdict for clean in result.clean] == ["holds", "holds"]


def test_hypothesis_runs_where_the_others_find_nothing(monkeypatch):
    right = Fault("pool-is-right", "slot_pool", SlotPool, "Nothing is wrong.", "accounting", ("mutant",))
    monkeypatch.setitem(FAULTS, right.id, right)
    found, nothing = score(SHORT, contracts=["slot_pool"], faults=["pool-keeps-one", "pool-is-right"], jobs=1).faults
    assert "hypothesis" not in {s.driver for s in found.sightings}
    assert [s.seed for s in nothing.sightings if s.driver == "hypothesis"] == [0, 1, 2]


def test_a_fault_that_nothing_catches_fails_the_score(monkeypatch):
    right = Fault("pool-is-right", "slot_pool", SlotPool, "Nothing is wrong.", "accounting", ("mutant",))
    monkeypatch.setitem(FAULTS, right.id, right)
    result = score(SHORT, contracts=["slot_pool"], faults=["pool-is-right", "pool-keeps-one"], jobs=1)
    assert result.verdict == "violated"
    assert [fault.id for fault in result.missed] == ["pool-is-right"]
    assert not result.missed[0].by_luck
    assert len(result.missed[0].sightings) == 3 + 2 + 2


def test_a_fault_scores_alike_alone_and_among_others():
    def sightings(*ids):
        result = score(QUICK, contracts=["slot_pool"], faults=ids, jobs=1)
        return {f.id: [(s.driver, s.seed, s.law, s.steps) for s in f.sightings] for f in result.faults}

    alone, others = sightings("pool-keeps-one"), sightings("pool-keeps-one", "pool-occupy-toggles", "pool-alloc-held")
    assert others["pool-keeps-one"] == alone["pool-keeps-one"]


def test_only_a_thorough_score_has_to_have_short_traces():
    model = MODELS["slot_pool"]
    trace = Trace("slot_pool", model.scopes[0], (Op("alloc"),) * 9, law="accounting")
    sighting = Sighting("random", 0, "accounting", 9, 0.1)
    found = FaultScore("x", "slot_pool", "accounting", [sighting], trace, tuple(law.id for law in model.laws))
    assert [Score([found], thorough=thorough).verdict for thorough in (False, True)] == ["holds", "violated"]


def test_a_false_alarm_fails_the_score(monkeypatch):
    wrong = resolve("slot_pool", "fault:pool-keeps-one").factory
    monkeypatch.setitem(OWN_TARGETS["slot_pool"], "wrong", f"{wrong.__module__}:{wrong.__qualname__}")
    result = score(QUICK, contracts=["slot_pool"], jobs=1)
    assert [(clean.target, clean.law) for clean in result.clean if clean.verdict != "holds"] == [
        ("wrong", "admission_honesty")
    ]
    assert not result.missed
    assert result.verdict == "violated"


@pytest.mark.parametrize(("most", "verdict"), [(10, "inconclusive"), (QUICK.random_steps, "holds")])
def test_a_known_good_target_that_misses_goals_plays_on(most, verdict):
    # The first episode of this seed has 20 steps.
    profile = replace(QUICK, random_steps=most)
    result = score(profile, contracts=["slot_pool"], seeds=(3,), clean_times=1.5 / most, jobs=1)
    assert [clean.verdict for clean in result.clean] == [verdict, verdict]
    assert all(clean.steps == 20 if clean.missed else 20 < clean.steps < most for clean in result.clean)


def test_a_known_good_target_that_has_met_its_goals_plays_its_share():
    result = score(QUICK, contracts=["slot_pool"], clean_times=0.5, jobs=1)
    assert all(QUICK.random_steps / 2 <= clean.steps < QUICK.random_steps / 2 + 400 for clean in result.clean)


def test_a_fault_that_one_seed_misses_is_caught_by_luck():
    sightings = [Sighting("random", seed, law, 10, 0.1) for seed, law in ((0, "accounting"), (1, None))]
    lucky = FaultScore("x", "slot_pool", "accounting", sightings)
    assert lucky.by_luck
    assert Score([lucky]).verdict == "violated"
    found = FaultScore("x", "slot_pool", "accounting", [*sightings, Sighting("explore", 0, "accounting", 10, 0.1)])
    assert found.caught, "exploration knows no seed"


def test_laws_are_alone_or_have_company():
    seen = {
        "a": ("conservation", "agreement"),
        "b": ("accounting", "conservation"),
        "c": ("accounting", "conservation"),
    }
    result = Score([FaultScore(id_, "slot_pool", "", [], None, laws) for id_, laws in seen.items()])
    laws = {law.id: law for law in result.laws()}
    assert (laws["conservation"].first, laws["conservation"].sees, laws["conservation"].alone) == (1, 3, ("a",))
    assert (laws["accounting"].first, laws["accounting"].alone, laws["accounting"].company) == (
        2,
        (),
        ("conservation",),
    )
    assert laws["no_aliasing"].sees == 0


def test_the_command_writes_traces_and_json(tmp_path):
    arguments = ["score", "--fault", "pool-keeps-one", "--json", "--traces", str(tmp_path)]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    (fault,) = document["faults"]
    assert (document["caught"], document["total"], document["clean"]) == (1, 1, [])
    assert fault["id"] == "pool-keeps-one"
    assert {"contract", "caught", "law", "driver", "steps", "trace_length", "seconds"} <= fault.keys()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.jsonl")] == [
        "slot_pool/pool-keeps-one.jsonl"
    ]


def test_the_command_prints_the_matrix():
    done = CliRunner().invoke(cli, ["score", "--contract", "slot_pool"])
    assert done.exit_code == 0
    assert "pool-keeps-one" in done.stdout
    assert "admission_honesty" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("HOLDS: ")


@pytest.mark.parametrize("arguments", [["--fault", "nonsense"], ["--contract", "nonsense"], ["--profile", "nonsense"]])
def test_bad_arguments_are_named(arguments):
    done = CliRunner().invoke(cli, ["score", *arguments])
    assert done.exit_code != 0
    assert "nonsense" in str(done.exception)
