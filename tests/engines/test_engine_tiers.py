"""The adapters of kv_tier: tiers of vLLM, LMCache and SGLang, each where it is on this machine."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from driving import walk
from engine_targets import target_or_skip

from kvlockstep.core.failure_page import failure_page
from kvlockstep.models.kv_tier.model import KVTierModel
from kvlockstep.reference.kv_tier.contract import HIT, MISS, PENDING, ChunkRemoved, ChunkStored, Key
from kvlockstep.targets.registry import ENGINE_TARGETS

A, B, C = (Key(n) for n in range(3))
NAMES = list(ENGINE_TARGETS["kv_tier"])


def engine(name: str) -> Any:
    """The factory of a target; skips the test where its engine is not here."""
    return target_or_skip("kv_tier", name).factory


def put(tier: Any, *keys: Key) -> Any:
    plan = tier.store(list(keys), "a")
    if hasattr(tier, "write"):
        for key in plan.units:
            tier.write(plan.id, key, data(key))
    tier.complete(plan.id, True)
    return plan


def data(key: Key) -> bytes:
    return f"chunk {key.hash}".encode()


def got(tier: Any, key: Key) -> bytes | None:
    """What a load of one chunk reads."""
    assert tier.lookup(key, "a") == HIT
    plan = tier.load([key], "a")
    found: bytes | None = tier.read(plan.id, key)
    tier.complete(plan.id, True)
    return found


def adapter(name: str) -> Any:
    """The module of a target's adapter."""
    return importlib.import_module(engine(name).__module__)


@pytest.mark.parametrize("name", NAMES)
def test_it_holds_and_reaches_every_goal(name: str) -> None:
    outcome = walk(KVTierModel, engine(name), 6_000, seed=3)
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
    outcome = walk(KVTierModel, make, 2_000)
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
    outcome = walk(KVTierModel, make, 2_000)
    assert outcome.failure is not None
    assert outcome.failure.law == "visible_when_written"


def test_sglang_keeps_its_pages_when_the_process_ends_in_the_middle_of_a_write() -> None:
    tier = engine("sglang-file")(2)
    put(tier, A)
    plan = tier.store([B], "a")
    tier.write(plan.id, B, data(B))
    tier.reopen()
    assert (tier.lookup(A, "b"), tier.lookup(B, "b")) == (HIT, MISS)
    assert got(tier, A) == data(A)
    assert len(tier.free_units()) == 1


def test_sglang_reads_no_page_of_which_a_part_is_gone() -> None:
    tier = adapter("sglang-file").make_damaged(1)
    put(tier, A)
    tier.damage(A, "truncate")
    assert got(tier, A) is None
    assert tier.lookup(A, "b") == HIT, "nobody repairs it: sglang-file-truncated-kept"


def test_a_write_under_the_final_name_is_seen_in_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    make = engine("sglang-file")
    monkeypatch.setattr(adapter("sglang-file").Broken, "tofile", lambda self, path: self._page.numpy().tofile(path))
    outcome = walk(KVTierModel, make, 2_000)
    assert outcome.failure is not None
    assert outcome.failure.law in ("crash_consistency", "failure_visible")


def test_vllm_brings_a_chunk_back_from_its_second_tier() -> None:
    tier = engine("vllm-tiering")(1)
    put(tier, A)
    assert put(tier, B).evicted == [A]
    plan = tier.store([A], "a")
    assert (plan.evicted, tier.lookup(A, "b"), len(tier.below.loads)) == ([B], PENDING, 1)
    tier.complete(plan.id, True)
    assert got(tier, A) == data(A)
    tier.reset()
    assert tier.store([A], "a").units, "the second tier is empty after a reset"
    assert not tier.below.loads


@pytest.mark.parametrize("name", ["vllm-tiering", "vllm-tiering-by-request"])
def test_a_cascade_without_its_units_is_seen_in_vllm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, primary = engine(name), adapter(name).managers.CPUPrimaryTierOffloadingManager
    init, spec = primary.__init__, adapter(name).managers.CPULoadStoreSpec

    def made(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self.complete_read = lambda *_: None

    def unpinned(self: Any, keys: Any, context: Any) -> Any:
        return spec([self._policy.get(key).chunk_id for key in keys])

    monkeypatch.setattr(primary, "__init__", made)
    monkeypatch.setattr(primary, "prepare_read", unpinned)
    # The CPU tier takes chunks before their cascades have ended.
    process = adapter(name).managers.TieringOffloadingManager.prepare_store
    monkeypatch.setattr(adapter(name).managers.TieringOffloadingManager, "prepare_store", without_polling(process))
    outcome = walk(KVTierModel, make, 20_000)
    assert outcome.failure is not None
    assert outcome.failure.law in ("whole_or_none", "error_contract")


def without_polling(prepare_store: Any) -> Any:
    """The call, in which the manager asks no tier what has ended."""

    def prepared(self: Any, keys: Any, context: Any) -> Any:
        self._process_finished_jobs = lambda *_: None
        try:
            return prepare_store(self, keys, context)
        finally:
            del self._process_finished_jobs

    return prepared


def test_a_store_that_does_not_ask_what_has_ended_is_seen_in_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    make, manager = engine("vllm-tiering"), adapter("vllm-tiering").managers.TieringOffloadingManager
    monkeypatch.setattr(manager, "prepare_store", without_polling(manager.prepare_store))
    outcome = walk(KVTierModel, make, 2_000)
    assert outcome.failure is not None
    assert outcome.failure.law == "refusal_honest"


def test_a_promotion_that_fails_and_counts_is_seen_in_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    make, manager = engine("vllm-tiering"), adapter("vllm-tiering").managers.TieringOffloadingManager
    complete = manager._complete_promotion

    def counted(self: Any, job: Any, result: Any) -> None:
        result.success = True
        complete(self, job, result)

    monkeypatch.setattr(manager, "_complete_promotion", counted)
    outcome = walk(KVTierModel, make, 2_000)
    assert outcome.failure is not None
    assert outcome.failure.law in ("failure_visible", "tier_accounting", "event_consistency")


def test_lmcache_reads_from_disk_what_it_wrote() -> None:
    tier = engine("lmcache-disk-repaired")(1)
    put(tier, A)
    assert got(tier, A) == data(A)
    assert put(tier, B).evicted == [A]
    assert (tier.lookup(A, "a"), got(tier, B)) == (MISS, data(B))


def test_an_unpin_that_lmcache_forgets_is_seen_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    make = engine("lmcache-disk-repaired")
    monkeypatch.setattr(adapter("lmcache-disk-repaired").disk.LocalDiskBackend, "unpin", lambda *_: True)
    outcome = walk(KVTierModel, make, 2_000)
    assert outcome.failure is not None
    assert outcome.failure.law in ("quiescence", "tier_accounting")


def test_pages_that_sglang_does_not_count_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    make = engine("sglang-host")
    pool = adapter("sglang-host").base.HostKVCache
    monkeypatch.setattr(pool, "available_size", lambda self: len(self.free_slots))
    outcome = walk(KVTierModel, make, 2_000)
    assert outcome.failure is not None
