"""Each law alone sees some fault, or SHADOWED says why not; the shortest traces of the faults show it."""

from __future__ import annotations

import functools

import pytest
from places import FAULT_TRACES

from kvlockstep.core.trace import load_trace
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.properties.law import EVERYWHERE
from kvlockstep.properties.overlaps import ANY_CONTRACT, SHADOWED, Shadow, shadow_of
from kvlockstep.runs.fault_scores import FaultScore, Score
from kvlockstep.runs.score import laws_that_see
from kvlockstep.targets import resolve


@functools.cache
def scored(contract: str) -> Score:
    """The score of a contract's faults, as far as their stored traces tell."""
    scores = []
    for fault in FAULTS.values():
        if fault.contract == contract:
            trace = load_trace(FAULT_TRACES / contract / f"{fault.id}.jsonl", contract)
            laws = tuple(laws_that_see(resolve(contract, f"fault:{fault.id}"), trace))
            scores.append(FaultScore(fault.id, contract, fault.law, [], trace, laws))
    return Score(scores)


def stands_or_falls(law) -> str:
    """What is wrong with a law of a score, if anything."""
    if law.alone:
        own = SHADOWED.get((law.contract, law.id))
        return f"is alone with {law.alone[0]}, and is said never to be" if own else ""
    return "" if law.reason else f"is never alone, which has no reason; sees {law.sees}, with {law.company}"


@pytest.mark.parametrize("contract", MODELS)
def test_a_law_is_alone_or_has_a_reason(contract):
    wrong = {law.id: stands_or_falls(law) for law in scored(contract).laws()}
    assert not {id_: why for id_, why in wrong.items() if why}


@pytest.mark.parametrize(("contract", "law"), [key for key in SHADOWED if key[0] != ANY_CONTRACT])
def test_a_reason_holds_for_every_fault(contract, law):
    others = set(SHADOWED[contract, law].others)
    assert others <= {other.id for other in model_of(contract).laws} - {law}
    seen = {fault.id: set(fault.laws) for fault in scored(contract).faults if law in fault.laws}
    assert seen, "no fault shows it"
    assert not [id_ for id_, laws in seen.items() if not laws & others]


def test_a_law_of_every_contract_is_alone_in_some():
    everywhere = {law.id for law in EVERYWHERE}
    assert {law for contract, law in SHADOWED if contract == ANY_CONTRACT} == everywhere
    assert {law.id for contract in MODELS for law in scored(contract).laws() if law.alone} >= everywhere


def test_a_reason_is_a_phrase():
    assert all(reason.why and not reason.why.endswith(".") for reason in SHADOWED.values())


def test_a_law_that_sees_nothing_needs_a_reason(monkeypatch):
    faults = [FaultScore("a", "block_stack", "", [], None, (law.id,)) for law in model_of("block_stack").laws[:-1]]
    assert not Score(faults).blind, "termination has a reason"
    monkeypatch.delitem(SHADOWED, (ANY_CONTRACT, "termination"))
    assert [law.id for law in Score(faults).blind] == ["termination"]
    assert not Score(faults, whole=False).blind
    monkeypatch.setitem(SHADOWED, ("block_stack", "termination"), Shadow((), "none"))
    assert shadow_of("block_stack", "termination") == Shadow((), "none")
