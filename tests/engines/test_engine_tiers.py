"""The adapters of kv_tier: the CPU tiers of vLLM and LMCache, each where it is on this machine."""

from __future__ import annotations

from typing import Any

import pytest
from driving import random_walk
from watched import watched

from kvlockstep.core.errors import UsageError
from kvlockstep.core.failure_page import failure_page
from kvlockstep.models.kv_tier.model import KVTierModel
from kvlockstep.reference.kv_tier.contract import HIT, MISS, PENDING, ChunkRemoved, ChunkStored, Key
from kvlockstep.targets.registry import ENGINE_TARGETS, EngineMissing, resolve

A, B, C = (Key(n) for n in range(3))
NAMES = list(ENGINE_TARGETS["kv_tier"])


def engine(name: str) -> Any:
    """The factory of a target; skips the test where its engine is not here."""
    try:
        return resolve("kv_tier", name).factory
    except UsageError as error:
        if not isinstance(error.__cause__, EngineMissing):
            raise
        pytest.skip(str(error))


def put(tier: Any, *keys: Key) -> Any:
    plan = tier.store(list(keys), "a")
    tier.complete(plan.id, True)
    return plan


@pytest.mark.parametrize("name", NAMES)
def test_it_holds_and_reaches_every_goal(name: str) -> None:
    outcome = watched(random_walk, KVTierModel, engine(name), seed=3, steps=6_000)
    assert outcome.failure is None, failure_page(outcome.failure)
    missed = {goal.id for goal in KVTierModel.goals if not outcome.reach[goal.id]}
    assert missed <= (outcome.unreachable or set())


@pytest.mark.parametrize("name", NAMES)
def test_an_extra_key_is_part_of_the_name(name: str) -> None:
    tier = engine(name)(2)
    put(tier, A)
    assert [tier.lookup(key, "b") for key in (A, Key(0, 0), Key(0, 7))] == [HIT, MISS, MISS]


def test_vllm_shows_what_is_in_flight_and_announces_it() -> None:
    tier = engine("vllm-cpu")(1)
    plan = tier.store([A], "a")
    assert tier.lookup(A, "b") == PENDING
    tier.complete(plan.id, True)
    assert put(tier, B).evicted == [A]
    assert list(tier.events()) == [ChunkStored((A,)), ChunkRemoved((A,)), ChunkStored((B,))]


def test_vllm_spares_what_is_offered() -> None:
    tier = engine("vllm-cpu")(2)
    put(tier, A, B)
    assert put(tier, A, C).evicted == [B]


def test_lmcache_evicts_what_is_offered() -> None:
    tier = engine("lmcache-cpu")(2)
    put(tier, A, B)
    assert put(tier, A, C).evicted == [A], "the chunk before C is gone: a hole at the start of the sequence"


def test_lmcache_keeps_what_is_pinned() -> None:
    tier = engine("lmcache-cpu")(1)
    put(tier, A)
    assert tier.pin(A, "a") == tier.pin(A, "a") == HIT
    assert tier.store([B], "b") is None
    tier.release("a")
    assert put(tier, B).evicted == [A]


@pytest.mark.parametrize("call", ["unpin", "ref_count_down"])
def test_a_reference_that_lmcache_would_leave_is_seen(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMCache#2785 and LMCache#3884, planted: a release that does not unpin, a load that keeps its reference."""
    make = engine("lmcache-cpu")
    backend = type(make(1).backend)
    if call == "unpin":
        monkeypatch.setattr(backend, "unpin", lambda *_: True)
    else:
        get = backend.get_blocking
        monkeypatch.setattr(backend, "get_blocking", lambda self, key: (get(self, key), get(self, key))[0])
    outcome = watched(random_walk, KVTierModel, make, seed=1, steps=2_000)
    assert outcome.failure is not None
    assert outcome.failure.law in ("quiescence", "tier_accounting")


def test_a_hit_before_its_store_is_done_is_seen_in_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    make = engine("vllm-cpu")
    manager = type(make(1).manager)
    lookup = manager.lookup

    def early(self: Any, key: Any, context: Any) -> Any:
        answer = lookup(self, key, context)
        return type(answer).HIT if answer is type(answer).HIT_PENDING else answer

    monkeypatch.setattr(manager, "lookup", early)
    outcome = watched(random_walk, KVTierModel, make, seed=1, steps=2_000)
    assert outcome.failure is not None
    assert outcome.failure.law == "visible_when_written"
