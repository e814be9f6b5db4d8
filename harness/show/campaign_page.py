"""The HTML page of a campaign, or of the results of a run: findings, goals, charts over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvlockstep.campaign.playing import LOOKED_AT
from kvlockstep.campaign.store import CORPUS, FINDINGS, FIXED, STATUS
from kvlockstep.core.errors import UsageError
from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.trace import Trace, load_trace
from kvlockstep.models.registry import MODELS
from kvlockstep.properties.law import counted
from kvlockstep.runs.results import INCONCLUSIVE, VIOLATED, law_verdicts
from kvlockstep.runs.saved_traces import traces_below
from kvlockstep.show.render import json_document, render

CHART_LEFT, CHART_RIGHT, CHART_TOP, CHART_BOTTOM = 60, 630, 10, 170
# The states of one episode in LOOKED_AT are counted, and many of them by sampling.
STATES = f"states, counted in 1 episode of {LOOKED_AT}"
# A timeline takes some 40 kB of the page, and its trace is played again to draw it.
MOST_TIMELINES = 30
# A rate is the mean over this share of the whole time, so that one slow shard does not look like a fall.
SMOOTH = 0.05


@dataclass
class CampaignPage:
    """A campaign as its page shows it. `history` has (seconds, steps, unique states or None) as recorded.

    `what` the page is of, in words: a campaign, findings, or the results of a run.
    """

    title: str
    contract: str = ""
    verdict: str = ""
    steps: int | None = None
    episodes: int | None = None
    states: int | None = None
    seconds: float | None = None
    failures: int | None = None
    reach: dict[str, int] = field(default_factory=dict)
    evaluated: dict[str, int] = field(default_factory=dict)
    not_checked: dict[str, str] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    findings: list[tuple[Trace, Path]] = field(default_factory=list)
    history: list[tuple[float, int, int | None]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    what: str = "results of a run"


def campaign_with(source: Path) -> Path:
    """The campaign of which `source` is a folder, such as its corpus, that has no page of its own; else `source`."""
    campaign = source.absolute().parent
    within = source.is_dir() and not (source / STATUS).is_file() and (campaign / STATUS).is_file()
    return source.parent if within and source.name in (CORPUS, FINDINGS, FIXED) else source


def read_campaign(directory: Path) -> CampaignPage:
    """Reads the traces below a directory, and its `status.json` if there is one. Raises UsageError.

    `status.json` is an object with any of contract, verdict, steps, seconds, episodes, unique, failures, reach (goal to
    count), evaluated (law to count), not_checked (law to reason), unreachable (goals), lost_workers, and history:
    [seconds, steps, unique states or null] as time went by.
    """
    findings, notes = _traces_below(directory)
    page = CampaignPage(f"Findings in {directory}")
    status = directory / STATUS
    if status.is_file():
        document = json_document(status)
        if document is None:
            raise UsageError(f"{status}: not a JSON object")
        page = campaign_of(status, document)
        page.title = f"Campaign in {directory}"
    elif not findings:
        held = len(traces_below(directory)) - len(notes)
        what = f"no finding among its {counted(held, 'trace')}" if held > 0 else "no trace"
        raise UsageError(f"{directory}: {what} and no {STATUS} in it; give the directory of --dir")
    page.findings, page.notes = findings, page.notes + notes
    page.what = "a campaign" if status.is_file() else counted(len(findings), "finding")
    page.verdict = VIOLATED if findings else page.verdict or INCONCLUSIVE
    return page


def _traces_below(directory: Path) -> tuple[list[tuple[Trace, Path]], list[str]]:
    findings, notes = [], []
    for path in traces_below(directory):
        try:
            trace = load_trace(path)
        except UsageError as error:
            notes.append(f"left out: {error}")
            continue
        if trace.law:
            findings.append((trace, path))
    return findings, notes


def campaign_of(path: Path, document: dict[str, Any]) -> CampaignPage:
    """A page of the JSON that check, explore and fuzz print, or of a status file with the same names."""
    page = CampaignPage(f"Results in {path}", verdict=str(document.get("verdict", "")))
    runs = document.get("runs", [document])
    try:
        page.steps = sum(int(run.get("steps", 0)) for run in runs)
        page.seconds = sum(float(run.get("seconds", 0.0)) for run in runs)
        page.episodes = _optional_int(document.get("episodes"))
        page.states = _optional_int(document.get("unique", document.get("unique_states")))
        page.failures = _optional_int(document.get("failures"))
        page.contract = str(runs[0].get("contract", "")) if runs else ""
        for run in runs:
            for goal, count in run.get("reach", {}).items():
                page.reach[goal] = page.reach.get(goal, 0) + int(count)
            if run.get("contract", page.contract) == page.contract:
                for law, count in run.get("evaluated", {}).items():
                    page.evaluated[law] = page.evaluated.get(law, 0) + int(count)
        page.not_checked = _not_checked(document.get("not_checked") or {}, page.contract)
        page.excused = set(document.get("unreachable") or ())
        page.history = [
            (float(seconds), int(steps), _optional_int(states))
            for seconds, steps, states in document.get("history", ())
        ]
        page.notes = [f"lost {lost}" for lost in document.get("lost_workers", ())]
        traces = [Path(t) for t in document.get("traces", [run["trace"] for run in runs if run.get("trace")])]
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise UsageError(f"{path}: malformed results: {type(error).__name__}: {error}") from error
    for trace in traces:
        if trace.is_file():
            page.findings.append((load_trace(trace), trace))
        else:
            page.notes.append(f"the trace {trace} is not there any more")
    return page


def _not_checked(given: dict[str, Any], contract: str) -> dict[str, str]:
    """Law to reason: of a campaign as it stands, of a check from those of each `contract target`."""
    of_targets = [reasons for about, reasons in given.items() if about.startswith(contract) and " " in about]
    return {law: str(reason) for reasons in of_targets or [given] for law, reason in reasons.items()}


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


def campaign_page(page: CampaignPage, timeline_of: Callable[[Trace, Path], str] | None = None) -> str:
    """Findings by law, steps per second and states over time, laws, goals.

    `timeline_of` makes the page of a finding, which then opens inside this one; empty if the finding's target cannot be
    played here.
    """
    rate = page.steps / page.seconds if page.steps and page.seconds else None
    facts: list[tuple[str, Any, str]] = [
        ("steps", page.steps, ",d"),
        ("steps/s", rate, ",.0f"),
        ("seconds", page.seconds, ",.1f"),
        ("episodes", page.episodes, ",d"),
        (STATES, page.states, ",d"),
        ("failing episodes", page.failures, ",d"),
    ]
    goals = MODELS[page.contract].goals if page.contract in MODELS and page.reach else ()
    violated = {trace.law for trace, _ in page.findings}
    known = page.contract in MODELS and page.evaluated
    laws = law_verdicts(page.contract, page.evaluated, page.not_checked, violated) if known else {}
    findings = sorted(page.findings, key=lambda finding: (finding[0].law, finding[0].contract, len(finding[0].ops)))
    return render(
        "campaign.html",
        title=page.title,
        verdict=page.verdict,
        facts=[(name, format(value, shape)) for name, value, shape in facts if value is not None],
        notes=page.notes,
        charts=list(_charts(page.history)),
        findings=[
            {
                "law": trace.law,
                "contract": trace.contract,
                "target": trace.target,
                "steps": len(trace.ops),
                "message": trace.message,
                "name": path.name,
                "page": failure_page(trace, path),
                "timeline": timeline_of(trace, path) if timeline_of is not None and number < MOST_TIMELINES else "",
            }
            for number, (trace, path) in enumerate(findings)
        ],
        laws=[
            {
                "id": law,
                "verdict": verdict.replace("_", " "),
                "count": f"{page.evaluated.get(law, 0):,}",
                "missed": verdict == "not_evaluated",
                "reason": page.not_checked.get(law, ""),
            }
            for law, verdict in laws.items()
        ],
        reach=[
            {
                "id": goal.id,
                "count": f"{page.reach.get(goal.id, 0):,}",
                "missed": not page.reach.get(goal.id) and goal.id not in page.excused,
                "statement": goal.statement,
                "excused": goal.id in page.excused,
            }
            for goal in goals
        ],
    )


def _charts(history: Sequence[tuple[float, int, int | None]]) -> Iterable[dict[str, str]]:
    if len(history) < 2:
        return
    yield from _chart("Steps per second", _rates(history))
    yield from _chart(
        f"Different {STATES}", [(seconds, states) for seconds, _, states in history if states is not None]
    )


def _rates(history: Sequence[tuple[float, int, int | None]]) -> list[tuple[float, float]]:
    """Steps per second at each time, over the last part of the time before it."""
    window = SMOOTH * (history[-1][0] - history[0][0])
    rates: list[tuple[float, float]] = []
    first = 0
    for seconds, steps, _ in history[1:]:
        while first + 1 < len(history) and history[first + 1][0] <= seconds - window:
            first += 1
        since, before, _ = history[first]
        if seconds > since:
            rates.append((seconds, (steps - before) / (seconds - since)))
    return rates


def _chart(title: str, values: Sequence[tuple[float, float]]) -> Iterable[dict[str, str]]:
    if len(values) < 2:
        return
    right, top = values[-1][0] or 1.0, max(value for _, value in values) or 1.0
    points = [
        (
            CHART_LEFT + (CHART_RIGHT - CHART_LEFT) * seconds / right,
            CHART_BOTTOM - (CHART_BOTTOM - CHART_TOP) * value / top,
        )
        for seconds, value in values
    ]
    yield {
        "title": title,
        "spoken": f"{values[-1][1]:,.0f} after {right:,.0f} s, at most {top:,.0f}",
        "points": " ".join(f"{x:.1f},{y:.1f}" for x, y in points),
        "top": f"{top:,.0f}",
        "right": f"{right:,.0f} s",
    }
