"""An engine, the encoding of its events and a router's index, together: the router expects each hit of the engine."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pytest
from driving import walk
from engine_targets import target_or_skip
from watched import watched

import kvlockstep
from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.trace import load_trace
from kvlockstep.drivers.episode import run_ops
from kvlockstep.models.kv_index import KVIndexModel
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.targets.registry import resolve

# vLLM announces each copy of a block, SGLang each block once.
ENGINES = {"vllm": "counting", "vllm-lora": "counting", "sglang": "chain"}


def engine(name: str) -> Any:
    """The factory of a target; skips the test where its engine is not here."""
    return target_or_skip("kv_manager", name).factory


class Routed:
    """A manager whose events also go to a router, which is asked before each admission."""

    def __init__(self, manager: Any, index: Any, seen: Counter[str]) -> None:
        self._manager, self._index, self._seen = manager, index, seen
        self._numbers, self._drained = count(), []
        self._exact = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def _drain(self) -> None:
        for event in self._manager.events():
            self._index.apply("worker", next(self._numbers), event)
            self._drained.append(event)

    def events(self) -> list[Any]:
        self._drain()
        told, self._drained = self._drained, []
        return told

    def evict_all(self) -> None:
        # A running request keeps its blocks and publishes more behind them, whose parents are not stored by then: an
        # index may leave those out.
        self._exact = False
        self._manager.evict_all()

    def reset(self) -> None:
        self._exact = True
        self._manager.reset()

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        self._drain()
        size = self._manager.block_size
        known = self._index.known(list(tokens), extra_key).get("worker", 0) * size
        cached: int | None = self._manager.admit(rid, tokens, extra_key, n)
        if cached is not None:
            # The last token is always computed.
            expected = min(known, (len(tokens) - 1) // size * size)
            assert cached == expected if self._exact else cached >= expected
            self._seen["hits" if cached else "misses"] += self._exact
        return cached


@pytest.mark.parametrize("name", ENGINES)
def test_the_router_expects_what_the_engine_finds(name: str, tmp_path: Any) -> None:
    factory, index, seen = engine(name), resolve("kv_index", ENGINES[name]).factory, Counter[str]()
    recorders: list[Any] = []

    def make(*arguments: Any) -> Routed:
        manager = factory(*arguments)
        path = tmp_path / f"{len(recorders)}.jsonl"
        recorders.append(kvlockstep.record(index(manager.block_size), path))
        return Routed(manager, recorders[-1], seen)

    outcome = walk(KVManagerModel, make, 4_000, seed=2)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert min(seen["hits"], seen["misses"]) > 100

    for recorder in recorders:
        recorder.close()
    trace = load_trace(tmp_path / "5.jsonl", "kv_index")
    assert {op.name for op in trace.ops} >= {"stored", "lookup"}
    assert watched(run_ops, KVIndexModel, index, trace.scope, trace.ops) is None
