"""reports.json: every report of a bug is cited by a fault, or it says why no fault can show it."""

from __future__ import annotations

import re

import pytest

from kvlockstep.impl.faulty import FAULTS
from kvlockstep.impl.faulty.reports import BEYOND, EXPECTED, SCOPES, UNCLASSIFIED, Report, reports, sources
from kvlockstep.models.registry import MODELS

CITED = {id_ for fault in FAULTS.values() for id_ in fault.seen}
IDS = {id_ for report in reports() for id_ in report.ids}
CATCHABLE = [report for report in reports() if report.scope == EXPECTED]


def test_the_list_is_whole():
    assert {report.scope for report in reports()} == set(SCOPES)
    assert len(IDS) == sum(len(report.ids) for report in reports()), "an id stands in two reports"
    assert len(CATCHABLE) == 185


def test_a_report_has_both_a_symptom_and_a_cause_or_neither():
    assert not [report.ids for report in reports() if bool(report.symptom) != bool(report.cause)]


@pytest.mark.parametrize("report", CATCHABLE, ids=lambda report: report.ids[0])
def test_a_bug_that_can_be_caught_is_a_fault_or_says_what_is_missing(report: Report):
    cited = CITED.intersection(report.ids)
    assert bool(cited) != bool(report.missing), f"cited as {sorted(cited)}; missing: {report.missing!r}"


def test_most_are_faults():
    assert sum(not report.missing for report in CATCHABLE) >= 170


def test_what_is_beyond_the_contracts_is_no_fault():
    assert not [report.ids for report in reports() if report.scope == BEYOND and CITED.intersection(report.ids)]


def test_what_is_missing_is_a_phrase_about_a_bug_that_should_be_caught():
    lacking = [report for report in reports() if report.missing]
    assert all(report.scope == EXPECTED for report in lacking)
    assert all(len(report.missing) > 3 and not report.missing.endswith(".") for report in lacking)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.id)
def test_a_fault_cites_what_is_known(fault):
    assert fault.seen
    assert {id_ for id_ in fault.seen if not id_.startswith("shape: ")} <= IDS | sources().keys()
    assert not ("mutant" in fault.seen and len(fault.seen) > 1)


def test_a_report_without_a_class_is_cited_by_a_law():
    answered = {id_ for model in MODELS.values() for law in model.laws for id_ in law.answers}
    unclassified = {report.ids[0] for report in reports() if report.scope == UNCLASSIFIED}
    assert unclassified <= answered | CITED


def test_every_source_is_cited():
    assert set(sources()) <= CITED


def test_an_id_is_a_repository_and_a_thread():
    assert not [id_ for id_ in IDS if not re.fullmatch(r"[\w./-]+#\d+( \([a-z]\))?", id_)]
