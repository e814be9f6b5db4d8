"""Traces in directories: those that a check plays first, and all that lie below one."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from kvlockstep.core.target_names import one_name
from kvlockstep.core.trace import Trace, load_trace, peek
from kvlockstep.models.registry import MODELS

# Names that we give, today and in older versions: contract, law, target in short, a hash, a number if that was taken.
_OURS = re.compile(rf"(?:unshrunk-)?(?P<contract>{'|'.join(MODELS)})-[a-z_]*-(?:.*-)?[0-9a-f]{{8}}(?:-\d+)?\.jsonl")


def named_by_us(path: Path) -> str:
    """The contract in a file name that a check, a campaign or an exploration gave; else nothing."""
    ours = _OURS.fullmatch(path.name)
    return ours["contract"] if ours else ""


def traces_below(directory: Path) -> list[Path]:
    """The files below a directory that may be traces, without hidden ones and those in hidden folders."""
    found: list[Path] = []
    for folder, folders, files in os.walk(directory):
        # They may be large: environments, caches, the objects of a repository.
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(folder, name) for name in files if name.endswith(".jsonl") and not name.startswith(".")]
    return sorted(found)


def traces_for(contract: str, target: str, directory: Path) -> tuple[list[tuple[Path, Trace]], list[str]]:
    """The traces of a directory for one target, and why files with names of their own were skipped.

    Raises UsageError for a damaged trace with a name of ours.
    """
    traces: list[tuple[Path, Trace]] = []
    notes: list[str] = []
    for path in sorted(directory.glob("*.jsonl")):
        if path.name.startswith("."):
            continue
        header, ours = peek(path), named_by_us(path)
        if header is not None and header.get("contract") == contract and _names(header, target):
            traces.append((path, load_trace(path, contract)))
        elif header is None and ours == contract and path.exists():
            load_trace(path)  # says what is wrong with it; one that is gone was mended for another target
        elif not ours:
            notes.append(f"skipped {path.name}: {_why(header)}")
    return traces, notes


def _names(header: dict[str, Any], target: str) -> bool:
    named = header.get("target")
    return isinstance(named, str) and one_name(named) == one_name(target)


def _why(header: dict[str, Any] | None) -> str:
    if header is None:
        return "no kvlockstep trace"
    target = header.get("target")
    return f"a trace for {header.get('contract')} on {target}" if target else "its header names no target"
