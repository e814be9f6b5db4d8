"""Traces: a failing sequence of operations as a file, one JSON object a line.

The first line is the header (format version, contract, scope, target, law, message), then one line per
operation, then `{"end": n}`, so that a truncated file is told from a short one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvlockstep.errors import UsageError
from kvlockstep.files import write_whole
from kvlockstep.models.model import Scope
from kvlockstep.models.op import Op
from kvlockstep.models.registry import model_of

VERSION = 1


@dataclass(frozen=True)
class Trace:
    """Operations of one episode with the answers that the target gave. `law` is empty for a run that held.

    `avails` is what was available after each operation, None where nobody asked or the trace does not say.
    `original` is the number of operations before shrinking, `flaky` whether a replay did not repeat the failure,
    `unfinished` whether shrinking ran out of its budget.
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

    @property
    def shape(self) -> str:
        """Names the kind of failure: contract, law and the sequence of operation names, without arguments."""
        names = " ".join(op.name for op in self.ops)
        return hashlib.sha256(f"{self.contract} {self.law} {names}".encode()).hexdigest()[:8]

    @property
    def file_name(self) -> str:
        return f"{self.contract}-{self.law}-{self.shape}.jsonl"

    def but(self, **changes: Any) -> Trace:
        return replace(self, **changes)


@dataclass
class _Header:
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
    header = _Header(
        trace.contract,
        trace.scope.to_json(),
        trace.target,
        trace.law,
        trace.message,
        list(trace.details),
        trace.driver,
        trace.seed,
        trace.original,
        trace.flaky,
        trace.unfinished,
    )
    values = {name: value for name, value in vars(header).items() if name != "unfinished" or value}
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

    Without `name` the file is named after what it violates, so that the same failure has one file.
    """
    path = directory / (name or trace.file_name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(path, trace_text(trace), durable=False)
    except OSError as error:
        raise UsageError(f"cannot write trace {path}: {error.strerror}; choose another directory with --dir") from error
    return path


def _as_proposed(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments as a model proposes them: lists of plain values or of tuples, which JSON has not."""
    return {k: [_tuples(v) for v in value] if isinstance(value, list) else value for k, value in args.items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def load_trace(path: Path, contract: str | None = None) -> Trace:
    """Reads a trace. Raises UsageError if it is truncated, of another version, malformed or for another contract."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UsageError(f"cannot read trace {path}: {reason}") from error
    return parse_trace(text, path, contract)


def parse_trace(text: str, path: Path | str, contract: str | None = None) -> Trace:
    """The trace that a text holds; `path` is what messages call it. Raises UsageError as `load_trace` does."""
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}:{number}: not JSON ({error.msg}); the trace is damaged or truncated") from error
    if not records or not isinstance(records[0], dict) or "kvlockstep_trace" not in records[0]:
        raise UsageError(
            f"{path}: not a kvlockstep trace: the first line has no 'kvlockstep_trace'; "
            "for a request trace, say --format mooncake"
        )
    header = records[0]
    if header.pop("kvlockstep_trace") != VERSION:
        raise UsageError(f"{path}: trace of another version; this kvlockstep reads version {VERSION}")
    if contract is not None and header.get("contract") != contract:
        raise UsageError(f"{path}: the trace is for contract {header.get('contract')!r}, not {contract!r}")
    if len(records) < 2 or records[-1] != {"end": len(records) - 2}:
        raise UsageError(f"{path}: the trace is truncated: its last line is not {{'end': {len(records) - 2}}}")
    try:
        known = _Header(**header)
        scope = model_of(known.contract).scope_type.from_json(known.scope)
        ops = tuple(Op(record["op"], **_as_proposed(record["args"])) for record in records[1:-1])
        answers = tuple(str(record.get("answer", "")) for record in records[1:-1])
        avails = tuple(n if type(n := record.get("avail")) is int else None for record in records[1:-1])
    except (TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path}: malformed trace: {type(error).__name__}: {error}") from error
    return Trace(
        known.contract,
        scope,
        ops,
        answers,
        known.target,
        known.law,
        known.message,
        tuple(known.details),
        known.driver,
        known.seed,
        known.original,
        known.flaky,
        known.unfinished,
        avails if any(n is not None for n in avails) else (),
    )
