"""Traces: a failing sequence of operations as a file, one JSON object a line.

The first line is the header (format version, contract, scope, target, law, message), then one line per
operation, then `{"end": n}`, so that a truncated file is told from a short one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from kvlockstep.core.errors import UsageError
from kvlockstep.core.files import write_whole
from kvlockstep.core.target_names import one_name
from kvlockstep.models.core.model import Scope
from kvlockstep.models.core.op import Op
from kvlockstep.models.core.safe_text import safe_text
from kvlockstep.models.core.trace_schema import op_of, require_kind, scope_of, shown
from kvlockstep.models.registry import MODELS, model_of

VERSION = 1
LONGEST_TARGET = 48
# Targets of ours with a colon in their name; all others with one are code.
# Prefixes of targets that come with kvlockstep. Traces saved by older versions say `harmless:` for `variant:`.
TARGETS_BY_ID = ("fault:", "variant:", "harmless:")


@dataclass(frozen=True)
class Trace:
    """Operations of one episode with the answers that the target gave. `law` is empty for a run that held.

    `avails` has the available slots after each operation, None where nobody asked or the trace does not say.
    `original` is the number of operations before shrinking. `flaky`: a replay did not repeat the failure.
    `unfinished`: shrinking ran out of its budget. `printed` are lines that the target printed in the last operation;
    they differ from run to run, and no file has them.
    """

    contract: str
    scope: Scope
    ops: tuple[Op, ...]
    answers: tuple[str, ...] = ()
    target: str = ""
    law: str = ""
    message: str = ""
    details: tuple[str, ...] = ()
    driver: str = ""
    seed: int | None = None
    original: int = 0
    flaky: bool = False
    unfinished: bool = False
    avails: tuple[int | None, ...] = ()
    printed: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        # Here a target's words enter every report, from a run as well as from a file.
        for name in ("target", "law", "message", "driver"):
            object.__setattr__(self, name, safe_text(getattr(self, name)))
        for name in ("answers", "details"):
            object.__setattr__(self, name, tuple(map(safe_text, getattr(self, name))))

    @property
    def shape(self) -> str:
        """Names the kind of failure: contract, law and the sequence of operation names, without arguments."""
        names = " ".join(op.name for op in self.ops)
        return hashlib.sha256(f"{self.contract} {self.law} {names}".encode()).hexdigest()[:8]

    @property
    def finding(self) -> tuple[str, str, str, str]:
        """The identity of a finding: contract, target by whichever of its names, law and shape."""
        return self.contract, one_name(self.target), self.law, self.shape

    @property
    def file_name(self) -> str:
        """A name for this finding and, in all likelihood, no other: contract, law, target in short, and a hash."""
        identity = hashlib.sha256("\0".join(self.finding).encode()).hexdigest()[:8]
        return "-".join(filter(None, (self.contract, self.law or "held", short(self.target), identity))) + ".jsonl"

    def but(self, **changes: Any) -> Trace:
        return replace(self, **changes)


def short(target: str) -> str:
    """The name of a target as part of a file name: the end of its path, in characters that every file system takes."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", re.split(r"[/\\]", target)[-1])[-LONGEST_TARGET:].strip("-.")


@dataclass
class _Header:
    """The values of a trace that stand in the first line of its file, in this order, with their JSON types."""

    contract: str
    scope: dict[str, Any]
    target: str = ""
    law: str = ""
    message: str = ""
    details: list[str] = field(default_factory=list)
    driver: str = ""
    seed: int | None = None
    original: int = 0
    flaky: bool = False
    unfinished: bool = False


def header_line(trace: Trace) -> str:
    """The first line of a trace file."""
    values = {f.name: getattr(trace, f.name) for f in fields(_Header)}
    values["scope"] = trace.scope.to_json()
    if not trace.unfinished:
        # Written only where it says something, so that saved traces stay as they are, byte for byte.
        del values["unfinished"]
    return json.dumps({"kvlockstep_trace": VERSION, **values})


def trace_text(trace: Trace) -> str:
    """The contents of a trace file."""
    lines = [header_line(trace)]
    answers: Sequence[str] = trace.answers + ("",) * (len(trace.ops) - len(trace.answers))
    avails = trace.avails + (None,) * (len(trace.ops) - len(trace.avails))
    for op, answer, avail in zip(trace.ops, answers, avails, strict=True):
        said = {**({"answer": answer} if answer else {}), **({"avail": avail} if avail is not None else {})}
        lines.append(json.dumps({"op": op.name, "args": op.args, **said}))
    lines.append(json.dumps({"end": len(trace.ops)}))
    return "\n".join(lines) + "\n"


def save_trace(trace: Trace, directory: Path, name: str = "") -> Path:
    """Writes the trace into the directory, whole or not at all, and returns its path. Raises UsageError.

    Without `name` the file is named after the finding: the same one has one file, and takes no other one's.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / name if name else _own_path(trace, directory)
        write_whole(path, trace_text(trace), durable=False)
    except OSError as error:
        path = directory / (name or trace.file_name)
        raise UsageError(f"cannot write trace {path}: {error.strerror}; choose another directory with --dir") from error
    return path


def _own_path(trace: Trace, directory: Path) -> Path:
    """The file of this finding, or a new one behind whatever has its name."""
    first = directory / trace.file_name
    names = itertools.chain([first], (first.with_stem(f"{first.stem}-{n}") for n in itertools.count(2)))
    return next(path for path in names if not os.path.lexists(path) or _holds(path, trace))


def _holds(path: Path, trace: Trace) -> bool:
    try:
        return load_trace(path).finding == trace.finding
    except UsageError:
        return False


def load_trace(path: Path, contract: str | None = None) -> Trace:
    """Reads a trace. Raises UsageError, naming file and line, if it is truncated, of another version, malformed or for
    another contract.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a UTF-8 text file"
        raise UsageError(f"cannot read trace {path}: {reason}") from error
    return parse_trace(text, path, contract)


def parse_trace(text: str, path: Path | str, contract: str | None = None) -> Trace:
    """The trace that a text holds; `path` is what messages call it. Raises UsageError as `load_trace` does."""
    lines = text.removesuffix("\n").split("\n") if text else []
    records = [_record(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]
    if not records or not is_header(records[0]):
        raise UsageError(
            f"{path}: not a kvlockstep trace: the first line has no 'kvlockstep_trace'; "
            "for a request trace, say --format mooncake"
        )
    header = _header(records[0], path, contract)
    if len(records) < 2 or records[-1] != {"end": len(records) - 2}:
        raise UsageError(f"{path}: the trace is truncated: its last line is not {{'end': {len(records) - 2}}}")
    try:
        scope = scope_of(model_of(header.contract), header.scope)
    except ValueError as error:
        raise UsageError(f"{path}:1: malformed trace: {error}") from error
    ops, answers, avails = [], [], []
    for index, record in enumerate(records[1:-1]):
        try:
            require_kind("the line", record, dict)
            ops.append(op_of(model_of(header.contract), record.get("op"), record.get("args")))
            answers.append(str(record.get("answer", "")))
            avails.append(n if type(n := record.get("avail")) is int else None)
        except ValueError as error:
            raise UsageError(f"{place_of(path, index)}: malformed trace: {error}") from error
    known = {**vars(header), "scope": scope, "details": tuple(header.details)}
    available = tuple(avails) if any(n is not None for n in avails) else ()
    return Trace(**known, ops=tuple(ops), answers=tuple(answers), avails=available)


def place_of(path: Path | str, index: int) -> str:
    """file:line of an operation in a trace file, counted from 0."""
    return f"{path}:{index + 2}"


def is_header(record: Any) -> bool:
    """Tells whether this is the first line of a trace, of whatever version."""
    return isinstance(record, dict) and "kvlockstep_trace" in record


def peek(path: Path) -> dict[str, Any] | None:
    """The first line of a trace file as it stands there; None if it is no trace or cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            record = _record(file.readline(), str(path))
    except (OSError, ValueError, UsageError):
        return None
    return record if is_header(record) else None


def replay_line(target: str, path: Path | str) -> str:
    """The command that replays a trace; it names a target that is code of somebody, which the trace alone must not."""
    words = ["kvlockstep", "replay", str(path)]
    if ":" in target and not target.startswith(TARGETS_BY_ID):
        words += ["--target", target]
    return shlex.join(words)


def _record(line: str, place: str) -> Any:
    try:
        return json.loads(line, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise UsageError(f"{place}: not JSON ({error.msg}); the trace is damaged or truncated") from error
    except RecursionError as error:
        raise UsageError(f"{place}: malformed trace: lists are nested too deep") from error
    except ValueError as error:
        raise UsageError(f"{place}: malformed trace: {error}") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _header(record: dict[str, Any], path: Path | str, contract: str | None) -> _Header:
    """The header with values of the types that it declares."""
    values = dict(record)
    if values.pop("kvlockstep_trace") != VERSION:
        raise UsageError(f"{path}: trace of another version; this kvlockstep reads version {VERSION}")
    named = values.get("contract")
    if contract is not None and named != contract:
        raise UsageError(f"{path}: the trace is for contract {shown(named)}, not {contract!r}")
    if not isinstance(named, str) or named not in MODELS:
        raise UsageError(f"{path}:1: malformed trace: unknown contract {shown(named)}; known: {', '.join(MODELS)}")
    kinds = get_type_hints(_Header)
    try:
        for name, value in values.items():
            if name not in kinds:
                raise ValueError(f"the header has an unknown value {shown(name)}; known: {', '.join(kinds)}")
            require_kind(f"{name} of the header", value, kinds[name])
        if "scope" not in values:
            raise ValueError("the header lacks scope")
    except ValueError as error:
        raise UsageError(f"{path}:1: malformed trace: {error}") from error
    return _Header(**values)
