"""KV events of vLLM's schedulers: what is planted in them is found, whichever scheduler, groups and tier it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from driving import walk

from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.targets import resolve

REASON = "vllm is not on this machine: see --engine-path"
vllm = pytest.importorskip("kvlockstep.impl.engines.vllm.modules", reason=REASON, exc_type=ImportError)
build_block_stored_event = vllm.pool.BlockPool._build_block_stored_event


def removes_silently(_self: Any, _hashes: Any) -> None:
    pass


def stores_under_no_parent(self: Any, *args: Any, **options: Any) -> Any:
    return build_block_stored_event(self, *args, **{**options, "parent_block_hash": None})


@pytest.mark.parametrize("name", ["vllm", "vllm-async-ngram", "vllm-async-window", "vllm-peer", "vllm-simple-windows"])
@pytest.mark.parametrize(
    ("method", "broken"),
    [("_emit_block_removed_events", removes_silently), ("_build_block_stored_event", stores_under_no_parent)],
)
def test_what_is_announced_wrongly_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, method: str, broken: Callable[..., Any]
) -> None:
    monkeypatch.setattr(vllm.pool.BlockPool, method, broken)
    outcome = walk(KVSchedulerModel, resolve("kv_scheduler", name).factory, 6_000, seed=0)
    assert outcome.failure is not None
    assert outcome.failure.law == "event_consistency", outcome.failure.message


def removes_from_the_tier_silently(name: str) -> Callable[..., Any]:
    # Not in `make`: what a factory forks ends with it, and `resolve` looks at a target in a child.
    factory = resolve("kv_scheduler", name).factory

    def make(*sizes: int) -> Any:
        made = factory(*sizes)
        told = made._manager.take_events
        made._manager.take_events = lambda: [e for e in told() if not isinstance(e, vllm.events.BlockRemoved)]
        return made

    return make


@pytest.mark.parametrize("name", ["vllm-simple", "vllm-simple-window"])
def test_a_tier_that_removes_silently_is_found(name: str) -> None:
    made = removes_from_the_tier_silently(name)
    outcome = walk(KVSchedulerModel, made, 6_000, seed=0)
    assert outcome.failure is not None
    assert outcome.failure.law == "event_consistency"
    assert "stored in cpu" in outcome.failure.message
