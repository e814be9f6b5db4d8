"""The HTML page of a score: faults by drivers, faults by laws, known-good targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvlockstep.core.errors import UsageError
from kvlockstep.drivers import CHECK_DRIVERS
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.runs.results import HOLDS, VIOLATED
from kvlockstep.show.render import render


def checked_score(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """The document, if it is what `score --json` prints. Raises UsageError."""
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
    """The matrix of faults by drivers, of faults by laws, and the known-good targets."""
    faults, clean = score["faults"], score["clean"]
    names = list(dict.fromkeys(fault["contract"] for fault in faults))
    found = {s["driver"] for fault in faults for s in fault.get("sightings", ())}
    found |= {fault["driver"] for fault in faults if fault.get("driver")}
    drivers = [driver for driver in CHECK_DRIVERS if driver in found] + sorted(found - set(CHECK_DRIVERS))
    missed = score["total"] - score["caught"]
    wrong = missed or any(target.get("verdict") == VIOLATED for target in clean)
    facts = [
        ("faults", f"{score['total']:,}"),
        ("missed", f"{missed:,}"),
        ("known-good targets that hold", f"{sum(target.get('verdict') == HOLDS for target in clean)} of {len(clean)}"),
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
                "contract": target.get("contract", ""),
                "target": target.get("target", ""),
                "verdict": target.get("verdict", ""),
                "steps": _count(target.get("steps")),
            }
            for target in clean
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
                "as_expected": fault.get("law") == fault.get("expected"),
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
