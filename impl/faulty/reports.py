"""Reports of real bugs, which faults and laws cite: reports.json is the one list of them.

A report has its ids (repository and thread; the first names it), a scope, and in our words the symptom and the cause.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

# A report's scope: what it takes to catch the bug.
EXPECTED = "expected"  # a machine without a GPU should catch it: some fault cites it, or `missing` says why none can
BEYOND = "beyond"  # it takes more than the contracts have, so no fault cites it
UNCLEAR = "unclear"  # the cause is not established
UNCLASSIFIED = "unclassified"  # it is only cited
SCOPES = (EXPECTED, BEYOND, UNCLEAR, UNCLASSIFIED)


@dataclass(frozen=True)
class Report:
    """A bug that was reported, once or several times.

    `missing` names what the contracts lack to express it. `symptom` and `cause` are empty where nobody wrote them down.
    """

    ids: tuple[str, ...]
    scope: str
    symptom: str = ""
    cause: str = ""
    missing: str = ""


@cache
def reports() -> tuple[Report, ...]:
    """Every report."""
    return tuple(Report(**{**row, "ids": tuple(row["ids"])}) for row in _read()["reports"])


def sources() -> dict[str, str]:
    """Names that a fault may cite besides reports, each with a note. `shape: ...` cites a kind of bug."""
    found: dict[str, str] = _read()["sources"]
    return found


@cache
def _read() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(files(__package__).joinpath("reports.json").read_text("utf-8"))
    return document
