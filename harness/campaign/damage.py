"""Checks of the files of a campaign, which a crash, an editor or another program may have damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_type_hints

from kvlockstep.campaign.plan import Plan
from kvlockstep.core.errors import UsageError
from kvlockstep.models.core.trace_schema import require_kind, shown
from kvlockstep.models.registry import MODELS

# What reading may raise where a value is of a type or has a content that nobody wrote.
DAMAGED = (
    UsageError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
Numbers = dict[str, int]
Texts = dict[str, str]
Failures = list[tuple[str, int, str]]
StepsAndEpisode = dict[str, tuple[int, int]]

LEDGER: dict[str, Any] = {
    "steps": int,
    "episodes": int,
    "failures": int,
    "seconds": float | int,
    "reach": Numbers,
    "not_checked": Texts,
    "kinds": Numbers,
    "findings": dict[str, tuple[int, str]],
    "shortest": StepsAndEpisode,
    "corpus": StepsAndEpisode,
    "reused": bool,
    "lost": int,
    "history": list[tuple[float | int, int, int]],
    "done": list[tuple[int, int]],
    "states": tuple[int, list[int]],
    "unreachable": list[str] | None,
    "ahead": dict[str, Failures],
    "to_shrink": Failures,
    "lost_texts": list[str],
}
SHARD: dict[str, Any] = {
    "shard": int,
    "steps": int,
    "episodes": int,
    "failures": int,
    "reach": Numbers,
    "not_checked": Texts,
    "unreachable": list[str] | None,
    "first": dict[str, tuple[int, str]],
    "shortest": StepsAndEpisode,
    "states": list[int],
    "lost": list[str],
}
RECORDS: dict[str, dict[str, Any]] = {
    "shard": {"report": dict},
    "finding": {"file": str, "episode": int, "kind": str},
    "fixed": {"file": str},
    "reused": {"failure": tuple[str, int, str] | None},
    "corpus": {"goal": str, "steps": int, "episode": int},
    "lost": {"text": str},
    "time": {"seconds": float | int},
}


@contextmanager
def read_from(place: str, way_out: str) -> Iterator[None]:
    """Turns whatever reading a damaged file raises into a UsageError that names it."""
    try:
        yield
    except DAMAGED as error:
        if isinstance(error, UsageError):
            reason = str(error)
        elif isinstance(error, OSError):
            reason = error.strerror or type(error).__name__
        else:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")
        raise UsageError(f"{place} cannot be read: {reason}; restore it, or {way_out}") from error


def checked_plan(values: Any, written: int) -> dict[str, Any]:
    """The plan in a campaign file of this format. Raises ValueError."""
    require_kind("the campaign", values, dict)
    if values.get("format") != written:
        raise ValueError(f"format {shown(values.get('format'))}, not {written}: another version of kvlockstep wrote it")
    plan = {name: value for name, value in values.items() if name != "format"}
    for name, kind in get_type_hints(Plan).items():
        require_kind(name, plan.get(name), float | int if kind is float else kind)
    if plan["contract"] not in MODELS:
        raise ValueError(f"unknown contract {shown(plan['contract'])}")
    return plan


def checked_ledger(values: Any) -> dict[str, Any]:
    """The JSON of a ledger. Raises ValueError."""
    return _checked("the ledger", values, LEDGER)


def checked_record(values: Any) -> dict[str, Any]:
    """A record of a journal. Raises ValueError."""
    require_kind("the record", values, dict)
    kind = values.get("record")
    if not isinstance(kind, str) or kind not in RECORDS:
        raise ValueError(f"unknown record {shown(kind)}")
    _checked(f"the record {kind}", values, RECORDS[kind])
    if kind == "shard":
        _checked("the report", values["report"], SHARD)
    for name in (values[key] for key in ("file", "goal") if key in RECORDS[kind]):
        if "/" in name or "\\" in name:
            raise ValueError(f"{shown(name)} is not a file name")
    return dict(values)


def _checked(what: str, values: Any, kinds: dict[str, Any]) -> dict[str, Any]:
    require_kind(what, values, dict)
    for name, kind in kinds.items():
        if name not in values:
            raise ValueError(f"{what} lacks {name}")
        require_kind(f"{name} in {what}", values[name], kind)
    return dict(values)
