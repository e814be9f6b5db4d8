"""Machine formats of results: JUnit XML, SARIF 2.1.0, GitHub annotations.

All three are made of the same Results. The options leave their file names in click's context, so that a verb only
says what came out.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree

import click

from kvlockstep.campaign.summary import Campaign
from kvlockstep.errors import UsageError
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.page import failure_page
from kvlockstep.report import Report, Run, gaps
from kvlockstep.targets import resolve
from kvlockstep.trace import Trace, replay_line

F = TypeVar("F", bound=Callable[..., Any])

FILES = "kvlockstep.formats"
BEGAN = "kvlockstep.formats.began"
SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
REACH = "reach"
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Finding:
    """A violated law: `page` for people, `shape` to know it again, `trace` the file if there is one."""

    contract: str
    target: str
    law: str
    message: str
    page: str
    shape: str = ""
    trace: str | None = None


@dataclass
class Results:
    """What came out of a verb.

    `missed` and `not_evaluated`: (contract, target) to reach goals and to laws; `skipped`: what did not run, and why.
    """

    runs: list[Run] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    missed: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    not_evaluated: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    not_checked: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def gaps(self) -> dict[tuple[str, str], str]:
        """Why a target's check is inconclusive, by (contract, target)."""
        cut: dict[tuple[str, str], list[str]] = {}
        for run in self.runs:
            if run.cut:
                cut.setdefault((run.contract, run.target), []).append(run.cut)
        about = dict.fromkeys([*cut, *self.missed, *self.not_evaluated])
        return {
            key: "; ".join([*cut.get(key, ()), *gaps(self.missed.get(key, ()), self.not_evaluated.get(key, ()))])
            for key in about
        }


def finding_of(trace: Trace, path: Path | str | None) -> Finding:
    """A failing trace as a finding."""
    file = str(path) if path is not None else None
    page = failure_page(trace, path)
    return Finding(trace.contract, trace.target, trace.law, trace.message, page, trace.shape, file)


def results_of(report: Report) -> Results:
    """What `check` answers."""
    results = results_of_runs(report.runs)
    results.skipped = report.skipped
    for target in report.targets:
        about = target.contract, target.target
        results.not_checked[about] = target.not_checked
        if target.missed:
            results.missed[about] = target.missed
        if target.not_evaluated:
            results.not_evaluated[about] = target.not_evaluated
    return results


def results_of_runs(runs: Sequence[Run]) -> Results:
    """Runs with at most one failure each."""
    return Results(list(runs), [finding_of(run.failure, run.trace) for run in runs if run.failure is not None])


def results_of_campaign(campaign: Campaign) -> Results:
    """A campaign as one run with all of its findings."""
    contract, target = campaign.target.contract, campaign.target.name
    steps, episodes, seconds = campaign.steps, campaign.episodes, campaign.seconds
    evaluated = dict(campaign.ledger.evaluated)
    run = Run(
        contract, target, campaign.plan.driver, campaign.verdict, steps, episodes, seconds, campaign.laws, evaluated
    )
    results = Results([run], [finding_of(trace, path) for trace, path in campaign.findings.values()])
    results.not_checked[contract, target] = campaign.not_checked
    if campaign.missed and not campaign.findings:
        results.missed[contract, target] = campaign.missed
    if campaign.not_evaluated and not campaign.findings:
        results.not_evaluated[contract, target] = campaign.not_evaluated
    return results


def results_of_json(result: Mapping[str, Any]) -> Results:
    """A replayed request trace, of which there is no trace file of ours."""
    runs = [Run(**run) for run in result["runs"]]
    message = str(result.get("message", ""))
    page = "\n".join([message, *result.get("details", ())])
    return Results(
        runs,
        [
            Finding(run.contract, run.target, law, message, page)
            for run in runs
            for law, state in run.laws.items()
            if state == "violated"
        ],
    )


def machine_formats(function: F) -> F:
    """Gives a verb the options --junit and --sarif; it has to call `publish`."""
    for name, what in (("sarif", "SARIF 2.1.0"), ("junit", "JUnit XML")):
        function = click.option(
            f"--{name}",
            metavar="FILE",
            type=click.Path(path_type=Path),
            expose_value=False,
            callback=_remember,
            help=f"Write the results as {what} to FILE as well.",
        )(function)
    return function


def _remember(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--{option.name} {path}: cannot write there")
    context.meta.setdefault(FILES, {})[option.name] = path
    context.meta.setdefault(BEGAN, datetime.now(UTC))


def publish(results: Results) -> None:
    """Writes the files that were asked for, and annotations if this runs in a GitHub workflow."""
    meta = click.get_current_context().meta
    files: Mapping[str, Path] = meta.get(FILES, {})
    for name, path in files.items():
        text = sarif(results) if name == "sarif" else junit(results, meta[BEGAN], socket.gethostname())
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--{name} {path}: cannot write: {error.strerror}") from error
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in github_annotations(results):
            click.echo(line, err=True)


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
            _fail(_case(suite, f"{contract}.{target}", goal), "inconclusive", f"never reached: {_goal(contract, goal)}")
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


def _law_cases(suite: ElementTree.Element, run: Run, left: list[Finding], reasons: Mapping[str, str]) -> None:
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


def sarif(results: Results) -> str:
    """SARIF 2.1.0: a result for each finding, at the target's source; a warning for each inconclusive target."""
    rules: dict[str, dict[str, Any]] = {}
    entries = []
    for finding in results.findings:
        rule = f"{finding.contract}/{finding.law}"
        rules.setdefault(rule, _rule(rule, finding.contract, finding.law))
        text = f"{finding.contract} on {finding.target} violates {finding.law}: {finding.message}"
        entry = _entry(rules, rule, "error", text, finding.contract, finding.target, finding.trace)
        entry["message"]["markdown"] = f"{_escaped(text)}\n\n{_fenced(finding.page)}"
        identity = f"{finding.contract}/{finding.target}/{finding.law}/{finding.shape}"
        entry["partialFingerprints"] = {"kvlockstepShape/v1": identity}
        entries.append(entry)
    for (contract, target), reason in results.gaps.items():
        rule = f"{contract}/{REACH}"
        rules.setdefault(rule, _rule(rule, contract, REACH))
        text = f"{contract} on {target} is inconclusive, {reason}"
        entry = _entry(rules, rule, "warning", text, contract, target, None)
        entry["partialFingerprints"] = {"kvlockstepShape/v1": f"{contract}/{target}/{REACH}"}
        entries.append(entry)
    driver = {"name": "kvlockstep", "version": version("kvlockstep"), "rules": list(rules.values())}
    skipped = [{"level": "note", "message": {"text": f"skipped {w}: {why}"}} for w, why in results.skipped.items()]
    invocation: dict[str, Any] = {"executionSuccessful": True}
    if skipped:
        invocation["toolExecutionNotifications"] = skipped
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": entries}
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(id_: str, contract: str, law: str) -> dict[str, Any]:
    known = {law.id: law for law in model_of(contract).laws} if contract in MODELS else {}
    every = "Every reach goal of the contract is reached, and every law evaluated."
    statement = known[law].statement if law in known else every
    rule: dict[str, Any] = {
        "id": id_,
        "name": "".join(part.capitalize() for part in law.split("_")),
        "shortDescription": {"text": statement},
        "help": {"text": f"kvlockstep explain {law}" if law in known else f"kvlockstep explain {contract}"},
    }
    if law in known and known[law].answers:
        rule["fullDescription"] = {"text": f"{statement} Seen in {', '.join(known[law].answers)}."}
    return rule


def _entry(
    rules: Mapping[str, Any], rule: str, level: str, text: str, contract: str, target: str, trace: str | None
) -> dict[str, Any]:
    file, line = source_of(contract, target)
    uri = file or _relative(trace) or "pyproject.toml"
    entry: dict[str, Any] = {
        "ruleId": rule,
        "ruleIndex": list(rules).index(rule),
        "level": level,
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": line}},
                "logicalLocations": [{"fullyQualifiedName": target, "kind": "type"}],
            }
        ],
    }
    if trace is not None:
        entry["properties"] = {"replay": replay_line(target, trace)}
    return entry


def github_annotations(results: Results) -> Iterable[str]:
    """Workflow commands of GitHub: an error for each finding, a warning for each target that is inconclusive."""
    for finding in results.findings:
        file, line = source_of(finding.contract, finding.target)
        place = {"file": file, "line": str(line)} if file else {}
        title = f"{finding.contract} on {finding.target}: {finding.law}"
        yield _command("error", finding.page, **place, title=title)
    for (contract, target), reason in results.gaps.items():
        yield _command("warning", reason, title=f"{contract} on {target}: inconclusive")


def _command(kind: str, message: str, **properties: str) -> str:
    escaped = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    values = {
        name: value.replace("%", "%25")
        .replace("\r", "%0D")
        .replace("\n", "%0A")
        .replace(":", "%3A")
        .replace(",", "%2C")
        for name, value in properties.items()
    }
    return f"::{kind} {','.join(f'{name}={value}' for name, value in values.items())}::{escaped}"


def source_of(contract: str, target: str) -> tuple[str, int]:
    """File, relative to the working directory, and line of a target's factory; ("", 1) if it lies elsewhere."""
    try:
        factory = resolve(contract, target).factory
        factory = inspect.unwrap(getattr(factory, "func", factory))
        file = inspect.getsourcefile(factory)
        line = inspect.getsourcelines(factory)[1]
    except (UsageError, TypeError, OSError):
        return "", 1
    below = _relative(file)
    return below, max(1, line) if below else 1


def _relative(path: str | None) -> str:
    """The path as a URI relative to the working directory; empty if it is not below it."""
    if path is None:
        return ""
    try:
        return Path(path).resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return ""


def _goal(contract: str, goal: str) -> str:
    goals = MODELS[contract].goals if contract in MODELS else ()
    return next((f"{g.id}: {g.statement}" for g in goals if g.id == goal), goal)


def _fenced(text: str) -> str:
    """A block of code in Markdown, which no text can end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>])", r"\\\1", text)
