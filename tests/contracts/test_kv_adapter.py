"""How a kv_manager may answer: any container of numbers, and one clear message for anything else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from driving import walk
from watched import watched

from kvlockstep.drivers.episode import run_ops
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.reference.kv_manager import KVManager

SCOPE = KVScope(4, 2, 4, 7)
SHARED_COPIES = (
    Op("admit", request="r0", tokens=[1, 2, 1], extra_key=None, n=3),
    Op("forward", accept=None, abort=[], reverse=None),
    Op("fork", request="r0", child="r1"),
    Op("decode", request="r1", token=2, drafts=[]),
    Op("forward", accept=None, abort=[], reverse=None),
)


class ExactSlots(KVManager):
    """Names of its last block only the slots of computed and reserved tokens."""

    def admit(self, rid: str, tokens: Any, extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None:
            self._ends = {**getattr(self, "_ends", {}), rid: min(len(tokens), cached + n)}
        return cached

    def reserve(self, rid: str, n: int) -> bool:
        done = super().reserve(rid, n)
        if done:
            self._ends[rid] = self._live[rid].computed + n
        return done

    def fork(self, rid: str, child: str) -> Any:
        pairs = super().fork(rid, child)
        if pairs is not None:
            self._ends[child] = self._live[rid].computed
        return pairs

    def withdraw(self, rid: str) -> None:
        super().withdraw(rid)
        if rid in self._live:
            self._ends[rid] = self._live[rid].computed

    def slots(self, rid: str) -> list[int]:
        slots = super().slots(rid)
        return slots[: max(self._ends[rid], len(slots) - self.block_size + 1)]


class PadsCopies(KVManager):
    """Pads its list of copies to four, with a pair outside of the pool."""

    def copies(self) -> list[tuple[int, int]]:
        return [*super().copies(), *[(-1, -1)] * 4]


class AnswersTensors(KVManager):
    def copies(self) -> Any:
        return torch.tensor(super().copies(), dtype=torch.int64).reshape(-1, 2)

    def fork(self, rid: str, child: str) -> Any:
        pairs = super().fork(rid, child)
        return pairs if pairs is None else torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)

    def slots(self, rid: str) -> Any:
        return torch.tensor(super().slots(rid))

    def avail(self) -> Any:
        return torch.tensor(super().avail())


class AnswersIterators(KVManager):
    def copies(self) -> Any:
        return iter(super().copies())

    def free_slots(self) -> Any:
        return iter(super().free_slots() or ())


class OwnsRows:
    """Two rows, each for one request from its admission on: what is reserved later is always there."""

    chunk, prefix_cache = True, False

    def __init__(self, blocks: int, block_size: int) -> None:
        blocks_of_row = max(1, blocks // 2)
        self.block_size, self.max_length = block_size, blocks_of_row * block_size
        self._free = list(range(blocks // blocks_of_row))
        self._rows: dict[str, int] = {}
        self.total = len(self._free) * self.max_length

    def admit(self, rid: str, tokens: Any, extra_key: int | None, n: int) -> int | None:
        if not self._free:
            return None
        self._rows[rid] = self._free.pop()
        return 0

    def reserve(self, rid: str, n: int) -> bool:
        return True

    def finish(self, rid: str) -> None:
        self._free.append(self._rows.pop(rid))

    abort = preempt = finish

    def slots(self, rid: str) -> range:
        return range(self._rows[rid] * self.max_length, (self._rows[rid] + 1) * self.max_length)

    def avail(self) -> int:
        return len(self._free) * self.max_length

    free_now = avail

    def free_slots(self) -> None:
        return None

    def copies(self) -> list[tuple[int, int]]:
        return []

    def append(self, rid: str, token: int) -> None:
        """Keeps no tokens."""

    commit = append

    def launch(self) -> None:
        """Has nothing left to do."""


@pytest.mark.parametrize("right", [ExactSlots, PadsCopies, AnswersTensors, AnswersIterators])
def test_what_a_manager_may_answer(right: Callable[..., Any]) -> None:
    outcome = walk(KVManagerModel, right, 6_000)
    assert outcome.failure is None, outcome.failure
    assert outcome.reach["copies"]


def with_method(name: str, answer: Callable[[], Any]) -> Callable[..., Any]:
    def method(_self: Any, *_args: Any) -> Any:
        return answer()

    method.__name__ = name
    return type("Odd", (KVManager,), {name: method})


def endless() -> Iterator[int]:
    while True:
        yield 0


def stuck() -> Iterator[int]:
    while True:
        pass
    yield 0


@pytest.mark.parametrize(
    ("name", "answer", "message"),
    [
        ("slots", lambda: None, "slots returned None, not numbers"),
        ("slots", lambda: "abc", "slots returned 'abc', not numbers"),
        ("free_slots", lambda: [(0, 1)], "free_slots returned [(0, 1)], not numbers"),
        ("free_slots", endless, "free_slots returned more than 100,000 numbers"),
        ("free_slots", stuck, "reading the result of free_slots did not return within the time limit"),
        ("copies", lambda: None, "copies returned None, not a list of copies"),
        ("copies", lambda: [1, 2], "copies returned [1, 2], not (source, target) pairs"),
        ("fork", lambda: True, "fork returned True, not (source, target) pairs"),
        ("avail", lambda: None, "avail returned None, not a number"),
        ("free_now", lambda: 0.5, "free_now returned 0.5, not a number"),
        ("reserve", lambda: None, "reserve returned None, not True or False"),
        ("commit", partial(sys.exit, 0), "commit raised SystemExit: 0"),
    ],
)
def test_an_odd_answer_is_named(name: str, answer: Callable[[], Any], message: str) -> None:
    trace = watched(run_ops, KVManagerModel, with_method(name, answer), SCOPE, SHARED_COPIES, limit=1.0)
    assert trace is not None
    assert trace.message == message


@pytest.mark.parametrize(
    ("trait", "value", "message"),
    [
        ("total", "many", "the trait total is 'many', not a number from 1 on"),
        ("chunk_align", 0, "the trait chunk_align is 0, not a number from 1 on"),
        ("output_reserve", None, "the trait output_reserve is None, not a number from 0 on"),
        ("tokens_per_decode", "1", "the trait tokens_per_decode is '1', not a number from 1 on"),
        ("event_listener", "sets", "the trait event_listener is 'sets', not one of (None, 'set', 'counting')"),
    ],
)
def test_a_trait_that_cannot_be_is_named(trait: str, value: Any, message: str) -> None:
    class Odd(KVManager):
        def __init__(self, blocks: int, block_size: int) -> None:
            super().__init__(blocks, block_size)
            setattr(self, trait, value)

    trace = watched(run_ops, KVManagerModel, Odd, SCOPE, ())
    assert trace is not None
    assert trace.message == message


def test_an_error_that_cannot_be_printed_is_an_error() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    class Raises(KVManager):
        def launch(self) -> None:
            raise Mute

    trace = watched(run_ops, KVManagerModel, Raises, SCOPE, SHARED_COPIES)
    assert trace is not None
    assert trace.message == "launch raised Mute"
    assert "models/core/calls.py" not in "".join(trace.details)


def test_a_refusal_cannot_come_where_rows_are_taken_whole() -> None:
    outcome = walk(KVManagerModel, OwnsRows, 20_000)
    assert outcome.failure is None, outcome.failure
    assert not outcome.reach["refused_reserve"]
    assert outcome.unreachable is not None
    assert "refused_reserve" in outcome.unreachable
