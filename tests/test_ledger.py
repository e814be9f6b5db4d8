"""Every bug seen in the field is a fault, or it is said why it cannot be one yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlockstep.impl.faulty import FAULTS
from kvlockstep.impl.faulty.reports import INEXPRESSIBLE, SOURCES

FIELD_BUGS = [line.split("\t") for line in (Path(__file__).parent / "data/field_bugs.txt").read_text().splitlines()]
EXPECTED = {ids[0]: ids for fit, *ids in FIELD_BUGS if fit == "D"}
NAMED = {id_ for fault in FAULTS.values() for id_ in fault.seen}


def test_the_list_is_whole():
    assert {fit for fit, *_ in FIELD_BUGS} == {"D", "h", "o"}
    assert len(EXPECTED) == sum(fit == "D" for fit, *_ in FIELD_BUGS) == 116


@pytest.mark.parametrize("row", EXPECTED)
def test_a_field_bug_is_a_fault_or_cannot_be_one(row):
    named = NAMED.intersection(EXPECTED[row])
    assert bool(named) != (row in INEXPRESSIBLE), f"{row}: named by {sorted(named)}, {INEXPRESSIBLE.get(row)}"


def test_most_are_faults():
    assert len(EXPECTED) - len(INEXPRESSIBLE) >= 90


def test_a_reason_is_a_phrase_about_a_known_bug():
    assert set(INEXPRESSIBLE) <= set(EXPECTED)
    assert all(len(reason) > 3 and not reason.endswith(".") for reason in INEXPRESSIBLE.values())


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.id)
def test_a_fault_names_what_is_known(fault):
    known = {id_ for _, *ids in FIELD_BUGS for id_ in ids} | set(SOURCES)
    assert fault.seen
    assert {id_ for id_ in fault.seen if not id_.startswith("shape: ")} <= known
    assert not ("mutant" in fault.seen and len(fault.seen) > 1)


def test_every_seed_has_faults():
    assert {source for source in SOURCES if source.startswith("seed")} <= NAMED
