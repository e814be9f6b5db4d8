"""Findings and gaps of results, which every machine format writes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvlockstep.campaign.summary import Campaign
from kvlockstep.core.errors import UsageError
from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.trace import Trace
from kvlockstep.runs.results import CheckResult, DriverResult, gaps
from kvlockstep.targets import resolve

REACH = "reach"


@dataclass(frozen=True)
class Finding:
    """A violated law: `page` is its failure page, `shape` identifies it, `trace` is its file if there is one."""

    contract: str
    target: str
    law: str
    message: str
    page: str
    shape: str = ""
    trace: str | None = None


@dataclass
class Results:
    """Results of a verb.

    `missed` and `not_evaluated`: (contract, target) to goals and to laws; `skipped`: target to the reason.
    """

    runs: list[DriverResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    missed: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    not_evaluated: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    not_checked: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def gaps(self) -> dict[tuple[str, str], str]:
        """Reasons why the check of a target is inconclusive, by (contract, target)."""
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


def results_of(report: CheckResult) -> Results:
    """The results of `check`."""
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


def results_of_runs(runs: Sequence[DriverResult]) -> Results:
    """Runs with at most one failure each."""
    return Results(list(runs), [finding_of(run.failure, run.trace) for run in runs if run.failure is not None])


def results_of_campaign(campaign: Campaign) -> Results:
    """A campaign as one run with all of its findings."""
    contract, target = campaign.target.contract, campaign.target.name
    steps, episodes, seconds = campaign.steps, campaign.episodes, campaign.seconds
    evaluated = dict(campaign.ledger.evaluated)
    run = DriverResult(
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
    runs = [DriverResult(**run) for run in result["runs"]]
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


def source_of(contract: str, target: str) -> tuple[str, int]:
    """File, relative to the working directory, and line of a target's factory; ("", 1) if it lies elsewhere."""
    try:
        factory = resolve(contract, target).factory
        factory = inspect.unwrap(getattr(factory, "func", factory))
        file = inspect.getsourcefile(factory)
        line = inspect.getsourcelines(factory)[1]
    except (UsageError, TypeError, OSError):
        return "", 1
    below = relative(file)
    return below, max(1, line) if below else 1


def relative(path: str | None) -> str:
    """The path as a URI relative to the working directory; empty if it is not below it."""
    if path is None:
        return ""
    try:
        return Path(path).resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return ""
