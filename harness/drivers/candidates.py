"""Candidates for a shorter trace: each function yields scopes with operations that may violate the same law."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kvlockstep.core.trace import Trace
from kvlockstep.models.core.model import Model, Scope
from kvlockstep.models.core.op import Op

# All pairs of so many operations are 276 candidates; of twice as many they would be more than all others together.
PAIRS_UP_TO = 24

Candidate = tuple[Scope, Sequence[Op]]
Transform = Callable[[Trace, type[Model[Any]]], Iterator[Candidate]]


def size_of(trace: Trace) -> tuple[int, int, int, str]:
    """The order of traces: by operations, then by how much there is to read of them, then by scope."""
    ops, scope = " ".join(map(str, trace.ops)), str(trace.scope.to_json())
    return len(trace.ops), len(ops), len(scope), ops + scope


def fewer_ops(trace: Trace, _model_type: type[Model[Any]]) -> Iterator[Candidate]:
    """The trace without half of its operations, then a quarter and so on, the last ones first."""
    ops = trace.ops
    size = len(ops) // 2
    while size >= 1:
        for start in range(len(ops) - size, -1, -size):
            yield trace.scope, ops[:start] + ops[start + size :]
        size //= 2


def without_pairs(trace: Trace, _model_type: type[Model[Any]]) -> Iterator[Candidate]:
    """The trace without two operations that only go together, like an allocation and its free."""
    ops = trace.ops
    if len(ops) > PAIRS_UP_TO:
        return
    for j in range(len(ops) - 1, 0, -1):
        for i in range(j - 1, -1, -1):
            yield trace.scope, ops[:i] + ops[i + 1 : j] + ops[j + 1 :]


def merged(trace: Trace, model_type: type[Model[Any]]) -> Iterator[Candidate]:
    """The trace with two of its actors merged, as its model knows how."""
    return ((trace.scope, ops) for ops in model_type.merged(trace.ops))


def smaller_scope(trace: Trace, model_type: type[Model[Any]]) -> Iterator[Candidate]:
    """The trace in smaller scopes."""
    yield from model_type.smaller(trace.scope, trace.ops)


def smaller_at_once(trace: Trace, model_type: type[Model[Any]]) -> Iterator[Candidate]:
    """The trace in smaller scopes with simpler operations, where neither helps alone."""
    yield from model_type.smaller_at_once(trace.scope, trace.ops)


def single_ops(ops: Sequence[Op]) -> list[set[int]]:
    """The positions of the operations, each a part of its own."""
    return [{i} for i in range(len(ops))]
