"""`record`: a live kv_manager behind a wrapper that writes what its scheduler does as a trace.

The calls of a scheduler become the operations that the judge makes: `append` and `reserve` a decode, `launch` and the
commits behind it a forward. An operation of a step is written when the step is over, since only then it is known how
many drafts were accepted. Costs one short list per call and one JSON line per operation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvlockstep.errors import UsageError
from kvlockstep.models.kv_judge import read_traits
from kvlockstep.models.kv_manager import KVScope
from kvlockstep.reference.contracts import Traits
from kvlockstep.trace import Trace, header_line

UNKNOWN_DRAFT = 0


class Recorder:
    """The manager itself to its scheduler; `close`, or leave the `with` block, to end the trace.

    Requests are renamed r0, r1, ... in the trace. A manager never learns the tokens of rejected drafts; 0 stands for
    them. Calls that only ask, like `slots` and `avail`, are passed on and not written. Raises UsageError if the file
    cannot be written.
    """

    def __init__(self, manager: Any, path: Path | str) -> None:
        self._manager = manager
        self._requests: dict[str, _Request] = {}
        self._preempted: set[str] = set()
        self._step = _StepSoFar()
        self._written = 0
        traits = read_traits(manager, Traits)
        blocks = traits.total // traits.block_size
        scope = KVScope(blocks, traits.block_size, live=blocks, max_tokens=traits.total)
        try:
            self._file = Path(path).open("w")  # noqa: SIM115
        except OSError as error:
            raise UsageError(f"cannot write trace {path}: {error.strerror}; record to another path") from error
        self._file.write(header_line(Trace("kv_manager", scope, ())) + "\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def admit(self, rid: str, tokens: Sequence[int], extra_key: Any, n: int) -> Any:
        cached = self._manager.admit(rid, tokens, extra_key, n)
        answer = "refused" if cached is None else f"cached {int(cached)}"
        if rid in self._preempted:
            self._schedule(rid, answer, "resume", request=self._name(rid), n=n)
            self._preempted -= {rid} if cached is not None else set()
        else:
            known = [int(token) for token in tokens]
            self._requests[rid] = _Request(f"r{len(self._requests)}", len(known), known[-1])
            self._schedule(rid, answer, "admit", request=self._name(rid), tokens=known, extra_key=extra_key, n=n)
        self._requests[rid].computed = int(cached or 0)
        return cached

    def append(self, rid: str, token: int) -> None:
        self._manager.append(rid, token)
        request = self._requests[rid]
        request.last = int(token)
        request.known += 1
        request.appended.append(int(token))

    def reserve(self, rid: str, n: int) -> Any:
        accepted = self._manager.reserve(rid, n)
        request = self._requests[rid]
        request.appended.clear()
        answer = "done" if accepted else "refused"
        if request.known - request.computed > 1:
            self._schedule(rid, answer, "chunk", request=request.name, n=n)
        else:
            drafts = [UNKNOWN_DRAFT] * (n - 1)
            self._schedule(rid, answer, "decode", request=request.name, token=request.last, drafts=drafts)
        return accepted

    def launch(self) -> None:
        self._manager.launch()
        self._step.launched = True

    def commit(self, rid: str, n: int) -> None:
        self._manager.commit(rid, n)
        request = self._requests[rid]
        request.computed += n
        self._step.accept(rid, request)
        self._land(rid)

    def abort(self, rid: str) -> None:
        self._manager.abort(rid)
        if self._step.launched and rid in self._step.scheduled:
            self._step.aborted.append(self._name(rid))
            self._land(rid)
        else:
            self._write(_line("abort", "", request=self._name(rid)))

    def finish(self, rid: str) -> None:
        self._manager.finish(rid)
        self._write(_line("finish", "", request=self._name(rid)))

    def preempt(self, rid: str) -> None:
        self._manager.preempt(rid)
        self._preempted.add(rid)
        self._note(_line("preempt", "", request=self._name(rid)))

    def withdraw(self, rid: str) -> None:
        self._manager.withdraw(rid)
        self._step.scheduled.remove(rid)
        self._note(_line("withdraw", "", request=self._name(rid)))

    def fork(self, rid: str, child: str) -> Any:
        copies = self._manager.fork(rid, child)
        name = f"r{len(self._requests)}"
        self._requests[child] = replace(self._requests[rid], name=name, appended=[])
        self._write(_line("fork", "refused" if copies is None else "", request=self._name(rid), child=name))
        return copies

    def evict_all(self) -> None:
        self._manager.evict_all()
        self._write(_line("evict_all", ""))

    def reset(self) -> None:
        self._manager.reset()
        self._preempted.clear()
        self._write(_line("reset", ""))

    def close(self) -> None:
        """Writes the end of the trace; a step that has not landed is left out."""
        if not self._file.closed:
            self._file.write(json.dumps({"end": self._written}) + "\n")
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _name(self, rid: str) -> str:
        return self._requests[rid].name

    def _schedule(self, rid: str, answer: str, operation: str, **args: Any) -> None:
        line = _line(operation, answer, **args)
        if answer != "refused":
            self._step.scheduled.append(rid)
            self._step.order.append(rid)
            self._step.line_of[rid] = line
        self._note(line)

    def _note(self, line: dict[str, Any]) -> None:
        """Kept until the step lands, if one is under way."""
        self._step.lines.append(line)
        if not self._step.scheduled:
            self._flush()

    def _land(self, rid: str) -> None:
        self._step.scheduled.remove(rid)
        self._step.landed.append(rid)
        if not self._step.scheduled:
            self._step.lines.append(self._step.forward())
            self._flush()

    def _flush(self) -> None:
        for line in self._step.lines:
            self._write(line)
        self._step = _StepSoFar()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._written += 1


@dataclass
class _Request:
    """A request under its name in the trace; `appended` are the tokens since its last reservation."""

    name: str
    known: int
    last: int
    computed: int = 0
    appended: list[int] = field(default_factory=list)


@dataclass
class _StepSoFar:
    """A step that has not landed. `scheduled` are the requests that have neither committed nor gone."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    line_of: dict[str, dict[str, Any]] = field(default_factory=dict)
    scheduled: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    landed: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    accepted: dict[str, int] = field(default_factory=dict)
    launched: bool = False

    def accept(self, rid: str, request: _Request) -> None:
        """The drafts that were accepted take their place among those of the request's decode."""
        if request.appended:
            self.line_of[rid]["args"]["drafts"][: len(request.appended)] = request.appended
            self.accepted[request.name] = len(request.appended)
            request.appended = []

    def forward(self) -> dict[str, Any]:
        backwards = len(self.landed) > 1 and self.landed == [rid for rid in reversed(self.order) if rid in self.landed]
        return _line("forward", "", accept=self.accepted or None, abort=self.aborted, reverse=backwards or None)


def _line(operation: str, answer: str, **args: Any) -> dict[str, Any]:
    return {"op": operation, "args": args, **({"answer": answer} if answer else {})}


def record(manager: Any, path: Path | str) -> Recorder:
    """Wraps a live kv_manager; what its scheduler does is written to `path`, for `kvlockstep replay`.

    Raises UsageError if the file cannot be written.
    """
    return Recorder(manager, path)
