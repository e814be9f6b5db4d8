"""Shortcuts for long traces of a kv_manager: few operations replace all that led to the last ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvlockstep.models.core.op import Op
from kvlockstep.models.requests.answers import DONE, Answer
from kvlockstep.models.requests.request import Request, accepted_of
from kvlockstep.models.requests.shrinking import of_requests, whose

STEP = Op("forward", accept=None, abort=[], reverse=None)
# How many requests are admitted in one step, where nothing but admissions is kept.
WIDTHS = 16, 4, 1


def shortcuts(ops: Sequence[Op], answers: Sequence[str]) -> Iterable[Sequence[Op]]:
    """Yields shorter operations that may violate the same law, the shortest first.

    First come only admissions, in case their number is the cause. Then, for the last operations, twice as many each
    time: all operations of their requests; or those operations alone, behind admissions that bring a new manager near
    to the state where they begin. Both come without the refused operations, then with them. Last come all operations
    but those of one kind. `answers` are the target's; that of the last operation does not count, since it failed.
    """
    known = [Answer.parse(text) for text in answers[: len(ops) - 1]]
    known += [DONE] * (len(ops) - len(known))
    granted = [i for i, answer in enumerate(known) if not answer.refused]
    kept = granted, range(len(ops))
    for width in WIDTHS:
        yield from _admissions(ops, width)
    length = 1
    while length < 2 * len(ops):
        first = max(0, len(ops) - length)
        names = {name for op in ops[first:] if (name := whose(op)) is not None}
        start = _step_begins(ops, known, first)
        leading = _leading_to(ops[:start], known)
        for some in kept:
            yield of_requests([ops[i] for i in some], names)
            yield [*leading, *(ops[i] for i in some if i >= start)]
        length *= 2
    for kind in sorted({op.name for op in ops}):
        for some in kept:
            yield [ops[i] for i in some if ops[i].name != kind]


def _admissions(ops: Sequence[Op], width: int) -> Iterable[Sequence[Op]]:
    """Yields twice as many admissions, `width` a step: of one token and then aborted, or whole and then finished."""
    prompts: dict[str, Op] = {op.args["request"]: op for op in ops if op.name == "admit"}
    begun = [prompts[name] for op in ops if op.name in ("admit", "resume") and (name := op.args["request"]) in prompts]
    fresh = [op.but(request=f"r{i}", n=len(op.args["tokens"])) for i, op in enumerate(begun * 2)]
    short: list[Op] = []
    whole: list[Op] = []
    for i in range(0, len(fresh), width):
        step = fresh[i : i + width]
        names = [op.args["request"] for op in step]
        short += [*(op.but(tokens=op.args["tokens"][:1], n=1) for op in step), STEP.but(abort=names)]
        whole += [*step, STEP, *(Op("finish", request=name) for name in names)]
    yield short
    yield whole


def _step_begins(ops: Sequence[Op], answers: Sequence[Answer], before: int) -> int:
    """Returns the last position up to `before` at which nothing is scheduled."""
    requests, position = _Requests(), 0
    for i in range(before):
        requests.take(ops[i], answers[i])
        position = position if requests.scheduled else i + 1
    return position


def _leading_to(ops: Sequence[Op], answers: Sequence[Answer]) -> list[Op]:
    """Returns few operations after which the same requests are live or preempted with the same tokens.

    A request is forked from its nearest live ancestor, if it has all tokens of that one.
    """
    requests = _Requests()
    for op, answer in zip(ops, answers, strict=False):
        requests.take(op, answer)
    leading: list[Op] = []
    for request in requests.preempted.values():
        leading += [_admission(request, len(request.tokens)), STEP, Op("preempt", request=request.name)]
    begun: set[str] = set()
    for name, request in requests.live.items():
        parent = next((requests.live[p] for p in requests.ancestors(name) if p in begun), None)
        if parent is not None and request.tokens[: len(parent.tokens)] == parent.tokens:
            leading.append(Op("fork", request=parent.name, child=name))
            for token in request.tokens[len(parent.tokens) :]:
                leading += [Op("decode", request=name, token=token, drafts=[]), STEP]
        else:
            leading += [_admission(request, request.computed or len(request.tokens)), STEP]
        begun.add(name)
    return leading


def _admission(request: Request, n: int) -> Op:
    return Op("admit", request=request.name, tokens=list(request.tokens), extra_key=request.extra_key, n=n)


class _Requests:
    """Requests of a trace with their known and computed tokens, by its operations and answers alone."""

    def __init__(self) -> None:
        self.live: dict[str, Request] = {}
        self.preempted: dict[str, Request] = {}
        self.scheduled: list[Request] = []
        self._parents: dict[str, str] = {}

    def ancestors(self, name: str) -> Iterable[str]:
        """Yields the parent that the request was forked from, then the parent's parent, and so on."""
        while name in self._parents:
            name = self._parents[name]
            yield name

    def take(self, op: Op, answer: Answer) -> None:
        """Applies an operation and its answer; an unknown answer counts as granted, with no token cached."""
        name = op.args.get("request", "")
        request = self.live.get(name)
        match op.name:
            case "admit" if not answer.refused:
                self._admit(Request(name, list(op.args["tokens"]), op.args["extra_key"]), op, answer)
            case "resume" if not answer.refused and name in self.preempted:
                self._admit(self.preempted.pop(name), op, answer)
            case "forward":
                self._forward(op)
            case "reset":
                self.live.clear()
                self.preempted.clear()
            case _ if request is not None:
                self._go_on(request, op, answer.refused)

    def _go_on(self, request: Request, op: Op, refused: bool) -> None:
        match op.name:
            case "chunk" if not refused:
                self._schedule(request, op.args["n"])
            case "decode":
                self._decode(request, op, refused)
            case "withdraw" if request.pending:
                self._withdraw(request)
            case "preempt":
                self.preempted[request.name] = self.live.pop(request.name)
            case "finish" | "abort":
                del self.live[request.name]
            case "fork" if not refused:
                self._fork(request, op.args["child"])

    def _admit(self, request: Request, op: Op, answer: Answer) -> None:
        request.computed = answer.cached or 0
        self.live[request.name] = request
        self._schedule(request, min(op.args["n"], request.remaining))
        request.admitted = True

    def _schedule(self, request: Request, n: int) -> None:
        request.pending = n
        request.admitted = False
        self.scheduled.append(request)

    def _decode(self, request: Request, op: Op, refused: bool) -> None:
        if request.remaining == 0:
            request.tokens.append(op.args["token"])
        if not refused:
            request.drafts = list(op.args["drafts"])
            self._schedule(request, 1 + len(request.drafts))

    def _withdraw(self, request: Request) -> None:
        self.scheduled.remove(request)
        request.pending, request.drafts = 0, []
        if request.admitted:
            del self.live[request.name]

    def _forward(self, op: Op) -> None:
        for request in self.scheduled:
            accepted = request.drafts[: accepted_of(op.args["accept"], request.name)]
            request.tokens += accepted
            request.computed += request.pending - len(request.drafts) + len(accepted)
            request.pending, request.drafts = 0, []
            if request.name in op.args["abort"]:
                self.live.pop(request.name, None)
        self.scheduled.clear()

    def _fork(self, parent: Request, child: str) -> None:
        self._parents[child] = parent.name
        self.live[child] = Request(child, list(parent.tokens), parent.extra_key, parent.computed)
