"""What playing a request trace tells: events on the way, a summary, and the law that does not hold."""

from __future__ import annotations

from dataclasses import dataclass

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import Op
from kvlockstep.runs.mooncake import MooncakeRequest


class ReplayDivergence(Divergence):
    """A law does not hold in a replay. `request` is the one it concerns, if any, `tail` the last operations before it.

    The operations in `tail` have the number of prompt tokens instead of the tokens.
    """

    def __init__(
        self, cause: Divergence, request: MooncakeRequest | None, tail: tuple[Op, ...], summary: Summary
    ) -> None:
        where = "" if request is None else f" (request of line {request.line})"
        super().__init__(cause.law, cause.message + where, [*cause.details, *map(str, tail)])
        self.request = request
        self.line = request.line if request is not None else None
        self.tail = tail
        self.summary = summary


@dataclass(frozen=True)
class RequestEvent:
    """Something that happened to a request: "admit", "resume", "preempt", "reject" or "finish", at `clock` ms.

    `tokens`: cached ones at an admission, computed ones otherwise.
    """

    kind: str
    line: int
    clock: float
    tokens: int


@dataclass(frozen=True)
class Summary:
    """The results of a replay.

    `requests` were played, `rejected` of them could not fit. `prompt_tokens`, `hit_tokens`: of first admissions; tokens
    that a resumed request finds of its own are no hits. `evictions`: cached blocks that were evicted, counted by the
    manager if it has an attribute `evictions`, else by the judge, as the blocks that were taken or became free and that
    no request gave back: a lower bound (`evictions_by`). `refusals`: of admissions and reservations. `operations`:
    calls of the judge. `granularity`: one stamp per "block" or per "slot". `peak_memory`: of this process so far, in
    MB. `clock`: simulated ms.
    """

    requests: int
    rejected: int
    prompt_tokens: int
    generated_tokens: int
    hit_tokens: int
    evictions: int
    evictions_by: str
    preemptions: int
    refusals: int
    steps: int
    operations: int
    clock: float
    seconds: float
    peak_memory: float
    granularity: str

    @property
    def hit_rate(self) -> float:
        """Hit tokens per prompt token."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def operations_per_second(self) -> float:
        return self.operations / self.seconds if self.seconds else 0.0
