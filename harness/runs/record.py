"""`record`: a live kv_manager behind a wrapper that writes what its scheduler does as a trace.

The calls of a scheduler become the operations that the judge makes: `append` and `reserve` a decode, `launch` and the
commits behind it a forward. An operation is written when its step is over, since the number of accepted drafts is
known only then. `kvlockstep bench record` measures the cost. Lines are joined as text, a step at a time, and a crash of
the process loses the last BUFFER bytes of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvlockstep.core.errors import UsageError
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.models.requests.adapter import read_traits
from kvlockstep.models.requests.answers import DONE, REFUSED, Answer
from kvlockstep.reference.kv_manager.groups.contract import one_full
from kvlockstep.reference.kv_manager.traits import Traits
from kvlockstep.runs.record_index import IndexRecorder
from kvlockstep.runs.recording import Recording, op_line

UNKNOWN_DRAFT = 0
BUFFER = 1 << 18
QUESTIONS = ("slots", "avail", "free_now", "free_slots", "copies", "blocks", "free_blocks", "events")


class Recorder(Recording):
    """Wrapper that a scheduler uses as the manager. `close` leaves out a step that has not landed.

    Requests are renamed r0, r1, ... in the trace. A manager never learns the tokens of rejected drafts; 0 stands for
    them. Calls that only ask, like `slots` and `avail`, are passed on and not written. Raises UsageError for a manager
    with groups.
    """

    def __init__(self, manager: Any, path: Path | str) -> None:
        traits = read_traits(manager, Traits)
        if not one_full(traits.groups):
            raise UsageError("a manager with groups cannot be recorded: its tables are asked for group by group")
        if traits.tiers:
            raise UsageError("a manager with tiers cannot be recorded: a trace does not say when its transfers end")
        super().__init__(manager, path, BUFFER)
        self._manager = manager
        for name in QUESTIONS:
            if hasattr(manager, name):
                setattr(self, name, getattr(manager, name))
        self._append, self._reserve, self._commit = manager.append, manager.reserve, manager.commit
        self._requests: dict[str, _Request] = {}
        self._preempted: set[str] = set()
        self._step = _StepSoFar()
        blocks = traits.total // traits.block_size
        self._begin("kv_manager", KVScope(blocks, traits.block_size, live=blocks, max_tokens=traits.total))

    def admit(self, rid: str, tokens: Sequence[int], extra_key: Any, n: int) -> Any:
        cached = self._manager.admit(rid, tokens, extra_key, n)
        answer = str(REFUSED if cached is None else Answer(cached=int(cached)))
        if rid in self._preempted:
            self._schedule(rid, op_line("resume", answer, request=self._requests[rid].name, n=n), cached is not None)
            self._preempted -= {rid} if cached is not None else set()
        else:
            known = list(map(int, tokens))
            name = f"r{len(self._requests)}"
            self._requests[rid] = _Request(name, len(known), known[-1])
            line = op_line("admit", answer, request=name, tokens=known, extra_key=extra_key, n=n)
            self._schedule(rid, line, cached is not None)
        self._requests[rid].computed = int(cached or 0)
        return cached

    def append(self, rid: str, token: int) -> None:
        self._append(rid, token)
        request = self._requests[rid]
        request.last = int(token)
        request.known += 1
        request.appended.append(request.last)

    def reserve(self, rid: str, n: int) -> Any:
        accepted = self._reserve(rid, n)
        request = self._requests[rid]
        request.appended.clear()
        answer = str(DONE if accepted else REFUSED)
        if request.known - request.computed > 1:
            line = op_line("chunk", answer, request=request.name, n=n)
        else:
            drafts = [UNKNOWN_DRAFT] * (n - 1)
            if drafts and accepted:
                self._step.drafted[rid] = len(self._step.lines)
            line = _decode(request, drafts, answer)
        self._schedule(rid, line, accepted)
        return accepted

    def launch(self) -> None:
        self._manager.launch()
        self._step.launched = True

    def commit(self, rid: str, n: int) -> None:
        self._commit(rid, n)
        request = self._requests[rid]
        request.computed += n
        if request.appended:
            self._step.accept(rid, request)
        self._land(rid)

    def abort(self, rid: str) -> None:
        self._manager.abort(rid)
        if self._step.launched and rid in self._step.scheduled:
            self._step.aborted.append(self._requests[rid].name)
            self._land(rid)
        else:
            self._write([op_line("abort", request=self._requests[rid].name)])

    def finish(self, rid: str) -> None:
        self._manager.finish(rid)
        self._write([op_line("finish", request=self._requests[rid].name)])

    def preempt(self, rid: str) -> None:
        self._manager.preempt(rid)
        self._preempted.add(rid)
        self._note(op_line("preempt", request=self._requests[rid].name))

    def withdraw(self, rid: str) -> None:
        self._manager.withdraw(rid)
        del self._step.scheduled[rid]
        self._step.order.remove(rid)
        self._step.drafted.pop(rid, None)
        self._note(op_line("withdraw", request=self._requests[rid].name))

    def fork(self, rid: str, child: str) -> Any:
        copies = self._manager.fork(rid, child)
        name = f"r{len(self._requests)}"
        parent = self._requests[rid]
        self._requests[child] = replace(parent, name=name, appended=[])
        self._write([op_line("fork", str(REFUSED) if copies is None else "", request=parent.name, child=name)])
        return copies

    def evict_all(self) -> None:
        self._manager.evict_all()
        self._write([op_line("evict_all")])

    def reset(self) -> None:
        self._manager.reset()
        self._preempted.clear()
        self._write([op_line("reset")])

    def _schedule(self, rid: str, line: str, accepted: Any) -> None:
        if not accepted:
            self._note(line)
            return
        step = self._step
        step.scheduled[rid] = None
        step.order.append(rid)
        step.lines.append(line)

    def _note(self, line: str) -> None:
        """Kept until the step lands, if one is under way."""
        self._step.lines.append(line)
        if not self._step.scheduled:
            self._flush()

    def _land(self, rid: str) -> None:
        step = self._step
        del step.scheduled[rid]
        step.landed.append(rid)
        if not step.scheduled:
            step.lines.append(step.forward())
            self._flush()

    def _flush(self) -> None:
        self._write(self._step.lines)
        self._step = _StepSoFar()


@dataclass(slots=True)
class _Request:
    """A request under its name in the trace; `appended` are the tokens since its last reservation."""

    name: str
    known: int
    last: int
    computed: int = 0
    appended: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _StepSoFar:
    """A step that has not landed. `scheduled` are the requests that have neither committed nor gone.

    `drafted` are the decodes with drafts: where the request's line stands in `lines`.
    """

    lines: list[str] = field(default_factory=list)
    drafted: dict[str, int] = field(default_factory=dict)
    scheduled: dict[str, None] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    landed: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    accepted: dict[str, int] = field(default_factory=dict)
    launched: bool = False

    def accept(self, rid: str, request: _Request) -> None:
        """The drafts that were accepted take their place among those of the request's decode."""
        at = self.drafted[rid]
        line = json.loads(self.lines[at])
        line["args"]["drafts"][: len(request.appended)] = request.appended
        self.lines[at] = json.dumps(line) + "\n"
        self.accepted[request.name] = len(request.appended)
        request.appended.clear()

    def forward(self) -> str:
        backwards = len(self.landed) > 1 and self.landed == self.order[::-1]
        if not backwards and not self.accepted and not self.aborted:
            return PLAIN_FORWARD
        return op_line("forward", accept=self.accepted or None, abort=self.aborted, reverse=backwards or None)


def _decode(request: _Request, drafts: list[int], answer: str) -> str:
    """The line that `op_line` makes, without its detour."""
    args = f'"request": "{request.name}", "token": {request.last}, "drafts": {drafts}'
    return f'{{"op": "decode", "args": {{{args}}}, "answer": "{answer}"}}\n'


PLAIN_FORWARD = op_line("forward", accept=None, abort=[], reverse=None)


def record(target: Any, path: Path | str) -> Recorder | IndexRecorder:
    """Wraps a live kv_manager, or the kv_index of a router. What it is asked for and told is written to `path`, for
    `kvlockstep replay`.

    Raises UsageError if the file cannot be written.
    """
    return IndexRecorder(target, path) if hasattr(target, "known") else Recorder(target, path)
