"""`report`: a finding, a campaign or a score as one self-contained HTML page."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from kvlockstep.checking import DRIVERS
from kvlockstep.console import progress_bar, stdout
from kvlockstep.errors import UsageError
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.observing import Observed, observe
from kvlockstep.page import failure_page
from kvlockstep.pictures import CACHED, FREE, HELD, UNKNOWN, Cell, Picture, Table
from kvlockstep.report import HOLDS, INCONCLUSIVE, VIOLATED
from kvlockstep.scripting import script_of
from kvlockstep.targets import Target, resolve
from kvlockstep.trace import Trace, load_trace

COLOURS = 10
MOST_ROWS = 512
MOST_ROWS_OF_STEP = 64
CHART_LEFT, CHART_RIGHT, CHART_TOP, CHART_BOTTOM = 60, 630, 10, 170
MARKS = {FREE: "", HELD: "", CACHED: "", UNKNOWN: "?"}
STATUS = "status.json"


@click.command("report")
@click.argument("source", type=click.Path(path_type=Path), metavar="TRACE|DIR|SCORE")
@click.option("-o", "--output", type=click.Path(path_type=Path), default="report.html", show_default=True)
@click.option("--target", metavar="NAME|MODULE:FACTORY", help="TRACE: play it on this target, not on the one it names.")
def report_command(source: Path, output: Path, target: str | None) -> None:
    """One self-contained HTML page of a finding, a campaign or a score.

    TRACE is a file that check or fuzz wrote, DIR the directory it was written to, SCORE the output of `score --json`;
    the output of check, explore and fuzz with --json makes a page as well. With an output that ends in .py, a TRACE
    becomes a Python script.
    """
    if not output.parent.is_dir():
        raise UsageError(f"cannot write {output}: there is no directory {output.parent}")
    with progress_bar() as progress:
        progress.add_task(f"reading {source}")
        text, what = _made(source, output, target)
    try:
        output.write_text(text)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}; choose another with -o") from error
    stdout().print(f"{output}: {what}, {len(text.encode()) / 1000:,.0f} kB", markup=False)


def _made(source: Path, output: Path, spec: str | None) -> tuple[str, str]:
    document = None if source.is_dir() else _json_document(source)
    if document is None and not source.is_dir():
        return _trace_page(source, output, spec)
    if spec is not None or output.suffix == ".py":
        raise UsageError(f"{source} is no trace; --target and an output that ends in .py are for traces")
    if source.is_dir():
        return campaign_page(read_campaign(source)), "a campaign"
    assert document is not None
    if "faults" in document:
        return score_page(_checked_score(source, document)), "a score"
    if "runs" in document:
        return campaign_page(_campaign_of(source, document)), "a campaign"
    raise UsageError(f"{source}: neither a score nor the results of a run: it has no 'faults' and no 'runs'")


def _json_document(path: Path) -> dict[str, Any] | None:
    """A file that is one JSON object and no trace; None for anything else that can be read."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        return None
    return document if isinstance(document, dict) and "kvlockstep_trace" not in document else None


def _trace_page(source: Path, output: Path, spec: str | None) -> tuple[str, str]:
    trace = load_trace(source)
    if output.suffix == ".py":
        return script_of(trace.but(target=spec or trace.target)), f"a script of {len(trace.ops)} steps"
    if not (spec or trace.target):
        raise UsageError(f"{source} names no target; give one with --target")
    target = resolve(trace.contract, spec or trace.target)
    return finding_page(trace.but(target=target.name), target, source), f"a finding of {len(trace.ops)} steps"


def render(template: str, **values: Any) -> str:
    """A page from a template of this package."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=PackageLoader("kvlockstep", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    written = time.strftime("%Y-%m-%d %H:%M")
    return environment.get_template(template).render(version=version("kvlockstep"), written=written, **values)


def finding_page(trace: Trace, target: Target, path: Path | None = None) -> str:
    """The page of one trace, played on the target to see what it looks like at every step."""
    observed = observe(target, trace)
    script = script_of(trace)
    name = f"{Path(trace.file_name).stem}.py"
    law = next((law for law in model_of(trace.contract).laws if law.id == (observed.law or trace.law)), None)
    pictures = [observed.start, *(m.picture for m in observed.moments)]
    colours = _colours(pictures)
    return render(
        "finding.html",
        title=f"{trace.contract} on {target.name}",
        trace=trace,
        verdict=VIOLATED if trace.law else HOLDS,
        scope=", ".join(f"{k}={v}" for k, v in trace.scope.shown().items()),
        note=_note(trace, observed),
        message=observed.message or trace.message,
        details=observed.details or trace.details,
        sides=observed.sides,
        wanted_by="must be" if trace.contract == "kv_manager" else "reference",
        law=law if trace.law else None,
        steps=_steps(trace, observed),
        rows=_rows(pictures, colours, observed.hidden),
        unit=next((p.unit for p in pictures if p and p.cells), "slot"),
        legend=[(holder, colour) for holder, colour in colours.items()][: 2 * COLOURS],
        replay=f"kvlockstep replay {path or trace.file_name} --target {target.name}",
        script=script,
        script_name=name,
        script_base64=base64.b64encode(script.encode()).decode(),
    )


def _note(trace: Trace, observed: Observed) -> str:
    if trace.law == observed.law:
        return ""
    if not observed.law:
        return (
            f"It did not repeat when this page was made: every law held. What is said of {trace.law} is from the file."
        )
    if not trace.law:
        return f"The file says that every law held; when this page was made, {observed.law} was violated."
    return f"The file says {trace.law}; when this page was made, {observed.law} was violated."


def _steps(trace: Trace, observed: Observed) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    before: Picture | None = None
    states = [("", "", observed.start), *((m.op, m.answer, m.picture) for m in observed.moments)]
    for number, (op, answer, picture) in enumerate(states):
        hidden = number < observed.hidden
        picture = None if hidden else picture
        steps.append(
            {
                "number": number,
                "op": op,
                "answer": answer,
                "broken": bool(observed.law) and number == len(observed.moments),
                "drawn": not hidden,
                "tables": _side_by_side(before, picture) if number else _side_by_side(None, picture),
                "why_empty": "Too long a trace: only its last steps are shown."
                if hidden
                else "The target cannot be looked at here.",
            }
        )
        before = picture
    return steps


def _side_by_side(before: Picture | None, after: Picture | None) -> list[dict[str, Any]]:
    if after is None:
        return []
    earlier = {table.title: table for table in (*before.tables, _cells(before))} if before else {}
    shown = []
    for table in (*after.tables, _cells(after)):
        old = earlier.get(table.title)
        sides = [("after", _marked(table, old))]
        if before is not None:
            sides.insert(0, ("before", _marked(old, table)))
        shown.append({"title": table.title, "columns": table.columns, "sides": sides})
    return shown


def _cells(picture: Picture) -> Table:
    """The slots as a table, for those who cannot see the grid or want to know what stands in them."""
    rows = tuple(
        (str(number), cell.state, ", ".join(cell.holders), str(cell.references), cell.content)
        for number, cell in sorted(picture.cells.items())[:MOST_ROWS_OF_STEP]
    )
    return Table(f"{picture.unit}s", (picture.unit, "state", "holders", "references", "content"), rows)


def _marked(table: Table | None, other: Table | None) -> list[tuple[bool, Sequence[str]]]:
    """The rows of a table, each with whether the other table lacks it."""
    if table is None:
        return []
    known = set(other.rows) if other is not None else set(table.rows)
    return [(row not in known, row) for row in table.rows]


def _colours(pictures: Iterable[Picture | None]) -> dict[str, int]:
    holders = dict.fromkeys(h for p in pictures if p for _, cell in sorted(p.cells.items()) for h in cell.holders)
    return {holder: number % COLOURS for number, holder in enumerate(holders)}


def _rows(pictures: Sequence[Picture | None], colours: dict[str, int], hidden: int) -> list[dict[str, Any]]:
    """Slots by steps; whole blocks if the slots are too many."""
    numbers = sorted({number for p in pictures if p for number in p.cells})
    group = next((p.group for p in pictures if p and p.cells), 1)
    rows = []
    for number in numbers[:MOST_ROWS]:
        cells = [
            _grid_cell(step, number, picture.cells.get(number) if picture else None, colours)
            for step, picture in enumerate(pictures)
            if step >= hidden
        ]
        rows.append({"number": number, "cells": cells, "block_end": group > 1 and (number + 1) % group == 0})
    return rows


def _grid_cell(step: int, number: int, cell: Cell | None, colours: dict[str, int]) -> dict[str, Any]:
    if cell is None:
        return {"step": step, "state": "", "colours": [], "background": "", "title": f"{number}: not known", "text": ""}
    shades = list(dict.fromkeys(colours[holder] for holder in cell.holders))
    stops = [f"var(--h{c}) {100 * i // len(shades)}% {100 * (i + 1) // len(shades)}%" for i, c in enumerate(shades)]
    holders = ", ".join(cell.holders) or "nobody"
    title = f"{number} after step {step}: {cell.state}, {holders}"
    return {
        "step": step,
        "state": cell.state,
        "colours": shades,
        "background": f"linear-gradient(90deg, {', '.join(stops)})"
        if len(shades) > 1
        else f"var(--h{(shades or [0])[0]})",
        "title": f"{title}; {cell.content}" if cell.content else title,
        "text": str(cell.references) if cell.references else MARKS[cell.state],
    }


@dataclass
class CampaignPage:
    """What is known of a campaign. `history` are (seconds, steps, unique states or None) as they were recorded."""

    title: str
    contract: str = ""
    verdict: str = ""
    steps: int | None = None
    episodes: int | None = None
    states: int | None = None
    seconds: float | None = None
    failures: int | None = None
    reach: dict[str, int] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    findings: list[tuple[Trace, Path]] = field(default_factory=list)
    history: list[tuple[float, int, int | None]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_campaign(directory: Path) -> CampaignPage:
    """The traces below a directory, and what `status.json` in it says if there is one. Raises UsageError.

    `status.json` is an object with any of contract, verdict, steps, seconds, episodes, unique, failures, reach (goal to
    count), unreachable (goals), lost_workers, and history: [seconds, steps, unique states or null] as time went by.
    """
    findings, notes = _traces_below(directory)
    page = CampaignPage(f"Campaign in {directory}")
    status = directory / STATUS
    if status.is_file():
        document = _json_document(status)
        if document is None:
            raise UsageError(f"{status}: not a JSON object")
        page = _campaign_of(status, document)
        page.title = f"Campaign in {directory}"
    elif not findings:
        raise UsageError(f"{directory}: neither traces nor a {STATUS} in it; give the directory of --dir")
    page.findings, page.notes = findings, page.notes + notes
    page.verdict = VIOLATED if findings else page.verdict or INCONCLUSIVE
    return page


def _traces_below(directory: Path) -> tuple[list[tuple[Trace, Path]], list[str]]:
    findings, notes = [], []
    for path in sorted(directory.rglob("*.jsonl")):
        if any(part.startswith(".") for part in path.relative_to(directory).parts):
            continue
        try:
            trace = load_trace(path)
        except UsageError as error:
            notes.append(f"left out: {error}")
            continue
        if trace.law:
            findings.append((trace, path))
    return findings, notes


def _campaign_of(path: Path, document: dict[str, Any]) -> CampaignPage:
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


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


def campaign_page(page: CampaignPage) -> str:
    """Steps per second, states over time, reach, findings by law."""
    rate = page.steps / page.seconds if page.steps and page.seconds else None
    facts: list[tuple[str, Any, str]] = [
        ("steps", page.steps, ",d"),
        ("steps/s", rate, ",.0f"),
        ("seconds", page.seconds, ",.1f"),
        ("episodes", page.episodes, ",d"),
        ("unique states", page.states, ",d"),
        ("failing episodes", page.failures, ",d"),
    ]
    goals = MODELS[page.contract].goals if page.contract in MODELS and page.reach else ()
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
            }
            for trace, path in findings
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
    rates = [
        (later[0], (later[1] - earlier[1]) / (later[0] - earlier[0]))
        for earlier, later in pairwise(history)
        if later[0] > earlier[0]
    ]
    yield from _chart("Steps per second", rates)
    yield from _chart("Unique states", [(seconds, states) for seconds, _, states in history if states is not None])


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


def _checked_score(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    wanted: dict[str, Callable[[Any], bool]] = {
        "caught": lambda value: isinstance(value, int),
        "total": lambda value: isinstance(value, int),
        "faults": lambda value: isinstance(value, list) and all({"id", "contract", "caught"} <= set(f) for f in value),
        "clean": lambda value: isinstance(value, list),
    }
    wrong = [name for name, right in wanted.items() if name not in document or not right(document[name])]
    if wrong:
        raise UsageError(f"{path}: not the output of `kvlockstep score --json`: look at {', '.join(wrong)}")
    return document


def score_page(score: dict[str, Any]) -> str:
    """The matrix of faults by drivers, of faults by laws, and the clean twins."""
    faults, clean = score["faults"], score["clean"]
    names = list(dict.fromkeys(fault["contract"] for fault in faults))
    found = {s["driver"] for fault in faults for s in fault.get("sightings", ())}
    found |= {fault["driver"] for fault in faults if fault.get("driver")}
    drivers = [driver for driver in DRIVERS if driver in found] + sorted(found - set(DRIVERS))
    missed = score["total"] - score["caught"]
    wrong = missed or any(twin.get("verdict") == VIOLATED for twin in clean)
    facts = [
        ("faults", f"{score['total']:,}"),
        ("missed", f"{missed:,}"),
        ("clean twins that hold", f"{sum(twin.get('verdict') == HOLDS for twin in clean)} of {len(clean)}"),
    ]
    if score.get("median_trace_length") is not None:
        facts.append(("operations in the median trace", f"{score['median_trace_length']:g}"))
    return render(
        "score.html",
        title="Score",
        verdict=score.get("verdict") or (VIOLATED if wrong else HOLDS),
        caught=score["caught"],
        total=score["total"],
        facts=facts,
        drivers=drivers,
        contracts=[_contract_score(name, [f for f in faults if f["contract"] == name], drivers) for name in names],
        clean=[
            {
                "contract": twin.get("contract", ""),
                "target": twin.get("target", ""),
                "verdict": twin.get("verdict", ""),
                "steps": _count(twin.get("steps")),
            }
            for twin in clean
        ],
    )


def _contract_score(name: str, faults: list[dict[str, Any]], drivers: Sequence[str]) -> dict[str, Any]:
    faults = sorted(faults, key=lambda fault: (bool(fault["caught"]), fault["id"]))
    laws = [law.id for law in model_of(name).laws] if name in MODELS else []
    seen = {law for fault in faults for law in fault.get("laws", ())}
    laws = [law for law in laws if law in seen] + sorted(seen - set(laws))
    return {
        "name": name,
        "caught": sum(bool(fault["caught"]) for fault in faults),
        "faults": [
            {
                "id": fault["id"],
                "caught": fault["caught"],
                "law": fault.get("law") or "",
                "expected": fault.get("expected") or "",
                "differs": fault.get("law") == fault.get("expected"),
                "steps": [_steps_to(fault, driver) for driver in drivers],
                "trace_length": _count(fault.get("trace_length")),
                "seconds": f"{fault['seconds']:.1f}" if fault.get("seconds") is not None else "",
            }
            for fault in faults
        ],
        "laws": laws,
        "matrix": [(fault["id"], [_mark(law, fault.get("laws", ())) for law in laws]) for fault in faults]
        if laws
        else [],
    }


def _steps_to(fault: dict[str, Any], driver: str) -> str:
    """Steps until the driver caught the fault, for the first of its seeds that did."""
    sightings = fault.get("sightings")
    if sightings is None:
        return _count(fault.get("steps")) if fault.get("driver") == driver else ""
    steps = [s["steps"] for s in sightings if s["driver"] == driver and s.get("law")]
    tried = any(s["driver"] == driver for s in sightings)
    return _count(steps[0]) if steps else "never" if tried else ""


def _mark(law: str, laws: Sequence[str]) -> str:
    return "" if law not in laws else "first" if law == laws[0] else "also"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
