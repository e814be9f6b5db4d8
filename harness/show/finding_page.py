"""The HTML page of one trace: what its target looks like at every step."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

from kvlockstep.core.trace import Trace
from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.core.picture import CACHED, FREE, HELD, UNKNOWN, Cell, Picture, Table
from kvlockstep.models.registry import model_of
from kvlockstep.runs.results import HOLDS, VIOLATED
from kvlockstep.show.bug_reports import public
from kvlockstep.show.observe import Observed, observe
from kvlockstep.show.render import render
from kvlockstep.show.script import script_of
from kvlockstep.targets import Target

COLOURS = 10
MOST_ROWS = 512
MOST_ROWS_OF_STEP = 64
MARKS = {FREE: "", HELD: "", CACHED: "", UNKNOWN: "?"}


def finding_page(trace: Trace, target: Target, path: Path | None = None) -> str:
    """The page of one trace, which is played on the target to draw every step."""
    observed = observe(target, trace)
    script = script_of(trace)
    name = f"{Path(trace.file_name).stem}.py"
    law = model_of(trace.contract).law(observed.law or trace.law)
    pictures = [observed.start, *(m.picture for m in observed.steps)]
    colours = _colours(pictures)
    unit = next((p.unit for p in pictures if p and p.cells), "slot")
    group = next((p.group for p in pictures if p and p.cells), 1)
    rows, unused = _rows(pictures, colours, observed.hidden, _wrong(unit, group, observed), group)
    return render(
        "finding.html",
        title=f"{trace.contract} on {target.name}",
        trace=trace,
        verdict=VIOLATED if trace.law else HOLDS,
        scope=", ".join(f"{k}={v}" for k, v in trace.scope.shown().items()),
        note=_note(trace, observed),
        message=observed.message or trace.message,
        details=observed.details or trace.details,
        differences=observed.differences,
        wanted_by="reference" if issubclass(model_of(trace.contract), LockstepModel) else "must be",
        law=law if trace.law else None,
        reports=public(law.answers) if law else [],
        steps=_steps(trace, observed),
        rows=rows,
        unused=unused,
        unit=unit,
        legend=[(holder, colour) for holder, colour in colours.items()][: 2 * COLOURS],
        replay=shlex.join(["kvlockstep", "replay", str(path or trace.file_name), "--target", target.name]),
        script=script,
        script_name=name,
        script_base64=base64.b64encode(script.encode()).decode(),
    )


def _note(trace: Trace, observed: Observed) -> str:
    if trace.law == observed.law:
        return ""
    if not observed.law:
        return (
            f"It did not repeat when this page was made: every law held. The text about {trace.law} is from the file."
        )
    if not trace.law:
        return f"The file says that every law held; when this page was made, {observed.law} was violated."
    return f"The file says {trace.law}; when this page was made, {observed.law} was violated."


def _steps(trace: Trace, observed: Observed) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    before: Picture | None = None
    states = [("", "", None, observed.start), *((m.op, m.answer, m.avail, m.picture) for m in observed.steps)]
    for number, (op, answer, avail, picture) in enumerate(states):
        hidden = number < observed.hidden
        picture = None if hidden else picture
        steps.append(
            {
                "number": number,
                "op": op,
                "answer": answer,
                "avail": avail,
                "broken": bool(observed.law) and number == len(observed.steps),
                "drawn": not hidden,
                "tables": _side_by_side(before, picture) if number else _side_by_side(None, picture),
                "why_empty": "The trace is too long: only its last steps are shown."
                if hidden
                else "The target cannot be inspected here.",
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
        states = [("after", _marked(table, old))]
        if before is not None:
            states.insert(0, ("before", _marked(old, table)))
        changed = any(is_changed for _, rows in states for is_changed, _ in rows)
        # Counters that stay as they were say nothing about this step.
        folded = before is not None and table.title == "counters" and not changed
        shown.append({"title": table.title, "columns": table.columns, "states": states, "folded": folded})
    return shown


def _cells(picture: Picture) -> Table:
    """The slots as a table, for those who cannot see the grid or want to know what stands in them."""
    blocks = picture.group > 1
    rows = tuple(
        (
            *((str(number), str(number // picture.group)) if blocks else (str(number),)),
            *(cell.state, ", ".join(cell.serves or cell.holders), str(cell.references), cell.content),
        )
        for number, cell in sorted(picture.cells.items())[:MOST_ROWS_OF_STEP]
    )
    where = (picture.unit, "block") if blocks else (picture.unit,)
    return Table(f"{picture.unit}s", (*where, "state", "holders", "references", "content"), rows)


def _marked(table: Table | None, other: Table | None) -> list[tuple[bool, Sequence[str]]]:
    """The rows of a table, each with whether the other table lacks it."""
    if table is None:
        return []
    known = set(other.rows) if other is not None else set(table.rows)
    return [(row not in known, row) for row in table.rows]


def _colours(pictures: Iterable[Picture | None]) -> dict[str, int]:
    holders = dict.fromkeys(h for p in pictures if p for _, cell in sorted(p.cells.items()) for h in cell.holders)
    return {holder: number % COLOURS for number, holder in enumerate(holders)}


def _wrong(unit: str, group: int, observed: Observed) -> set[int]:
    """The slots that the violation names, or those of the blocks that it names; the blocks if these are the `unit`."""
    if not observed.law:
        return set()
    texts = [observed.message, *(side.what for side in observed.differences)]
    if named := _named(unit, texts):
        return named
    return {block * group + offset for block in _named("block", texts) for offset in range(group)}


def _named(unit: str, texts: Sequence[str]) -> set[int]:
    """The numbers behind a word: slot 1, slots 1 and 2, slots [1, 2]; none if it is some of them."""
    lists = re.findall(rf"(?<!some of )\b{unit}s? \[?(\d+(?:(?:, | and )\d+)*)", " ".join(texts))
    return {int(number) for numbers in lists for number in re.findall(r"\d+", numbers)}


def _rows(
    pictures: Sequence[Picture | None], colours: dict[str, int], hidden: int, wrong: Container[int], group: int
) -> tuple[list[dict[str, Any]], list[int]]:
    """Slots by steps, whole blocks if the slots are too many; and the slots that no step uses."""
    numbers = sorted({number for p in pictures if p for number in p.cells})
    used = {number for p in pictures if p for number, cell in p.cells.items() if cell.state != FREE}
    rows = []
    shown = [number for number in numbers if number in used or number in wrong] or numbers
    for number in shown[:MOST_ROWS]:
        cells = [
            _grid_cell(step, _place(number, group), picture.cells.get(number) if picture else None, colours)
            for step, picture in enumerate(pictures)
            if step >= hidden
        ]
        if number in wrong and cells:
            cells[-1]["wrong"] = True
        rows.append({"number": number, "cells": cells, "block_end": group > 1 and (number + 1) % group == 0})
    return rows, [number for number in numbers if number not in shown]


def _place(number: int, group: int) -> str:
    return f"{number} of block {number // group}" if group > 1 else str(number)


def _grid_cell(step: int, place: str, cell: Cell | None, colours: dict[str, int]) -> dict[str, Any]:
    if cell is None:
        return {
            "step": step,
            "state": "",
            "wrong": False,
            "colours": [],
            "background": "",
            "title": f"{place}: not known",
            "text": "",
        }
    shades = list(dict.fromkeys(colours[holder] for holder in cell.holders))
    stops = [f"var(--h{c}) {100 * i // len(shades)}% {100 * (i + 1) // len(shades)}%" for i, c in enumerate(shades)]
    holders = ", ".join(cell.serves or cell.holders) or "nobody"
    title = f"{place} after step {step}: {cell.state}, {holders}"
    return {
        "step": step,
        "state": cell.state,
        "wrong": False,
        "colours": shades,
        "background": f"linear-gradient(90deg, {', '.join(stops)})"
        if len(shades) > 1
        else f"var(--h{(shades or [0])[0]})",
        "title": f"{title}; {cell.content}" if cell.content else title,
        "text": str(cell.references) if cell.references else MARKS[cell.state],
    }
