"""Results as JUnit XML: a test case for each law."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from xml.etree import ElementTree

from kvlockstep.models.registry import MODELS
from kvlockstep.runs.results import DriverResult
from kvlockstep.show.findings import REACH, Finding, Results

NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(results: Results, began: datetime, host: str) -> str:
    """JUnit XML: a suite for each run, a case for each law; a goal or a law that no run came to is a failure.

    `began` is an aware datetime; each suite carries it and `host`, the machine that ran it.
    """
    root = ElementTree.Element("testsuites", name="kvlockstep")
    left = list(results.findings)
    for run in results.runs:
        suite = ElementTree.SubElement(root, "testsuite", name=f"{run.contract} on {run.target}: {run.driver}")
        reasons = results.not_checked.get((run.contract, run.target), {})
        _law_cases(suite, run, left, reasons)
        _count(suite, run.seconds)
    for contract, target in results.gaps:
        suite = ElementTree.SubElement(root, "testsuite", name=f"{contract} on {target}: {REACH}")
        for run in results.runs:
            if run.cut and (run.contract, run.target) == (contract, target):
                _fail(_case(suite, f"{contract}.{target}", run.driver), "inconclusive", run.cut)
        for goal in results.missed.get((contract, target), ()):
            _fail(_case(suite, f"{contract}.{target}", goal), "inconclusive", f"missed goal: {_goal(contract, goal)}")
        for law in results.not_evaluated.get((contract, target), ()):
            _fail(_case(suite, f"{contract}.{target}", law), "inconclusive", f"never evaluated: law {law}")
        _count(suite, 0.0)
    if results.skipped:
        suite = ElementTree.SubElement(root, "testsuite", name="skipped")
        for what, reason in results.skipped.items():
            ElementTree.SubElement(_case(suite, "kvlockstep", what), "skipped", message=_xml(reason))
        _count(suite, 0.0)
    for suite in root:
        # The usual schemas allow no time zone here; like Ant, which the format comes from, UTC is meant.
        suite.set("timestamp", began.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S"))
        suite.set("hostname", _xml(host) or "localhost")
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in root):.3f}")
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def _law_cases(suite: ElementTree.Element, run: DriverResult, left: list[Finding], reasons: Mapping[str, str]) -> None:
    """A case for each law of a run; takes the run's findings out of those that are left."""
    classname = f"{run.contract}.{run.target}.{run.driver}"
    for law, state in run.laws.items():
        mine = [f for f in left if (f.contract, f.target, f.law) == (run.contract, run.target, law)]
        if run.failure is not None:
            mine = mine[:1]
        for number, finding in enumerate(mine if state == "violated" else ()):
            left.remove(finding)
            case = _case(suite, classname, law if not number else f"{law} {finding.shape}")
            _fail(case, law, finding.message, finding.page)
        if state == "violated" and not mine:
            _fail(_case(suite, classname, law), law, run.note or "violated")
        elif state != "violated":
            case = _case(suite, classname, law)
            if state == "not_checked":
                ElementTree.SubElement(case, "skipped", message=_xml(reasons.get(law, "not checked")))
            elif state == "not_evaluated":
                ElementTree.SubElement(case, "skipped", message="not evaluated in this run")


def _case(suite: ElementTree.Element, classname: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=_xml(classname), name=_xml(name), time="0")


def _fail(case: ElementTree.Element, kind: str, message: str, text: str = "") -> None:
    failure = ElementTree.SubElement(case, "failure", type=kind, message=_xml(message))
    failure.text = _xml(text or message)


def _count(suite: ElementTree.Element, seconds: float) -> None:
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", "0")
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("time", f"{seconds:.3f}")


def _xml(text: str) -> str:
    """The text without the characters that XML cannot hold."""
    return NOT_IN_XML.sub("\ufffd", text)


def _goal(contract: str, goal: str) -> str:
    goals = MODELS[contract].goals if contract in MODELS else ()
    return next((f"{g.id}: {g.statement}" for g in goals if g.id == goal), goal)
