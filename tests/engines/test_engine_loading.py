"""SGLang's tree with its host tier under kv_manager: loads in the step, or in front of it by the decode side."""

from __future__ import annotations

from functools import partial
from pkgutil import resolve_name
from typing import Any

import pytest
from driving import walk
from engine_targets import target_or_skip

from kvlockstep.core.trace import load_trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import run_ops
from kvlockstep.models.registry import model_of
from kvlockstep.reference.kv.transfers import Loading
from kvlockstep.targets.registry import known_divergences

MISSING = "SGLang is not on this machine: see --engine-path"
tiered = pytest.importorskip("kvlockstep.impl.engines.sglang.tiers.tiered", reason=MISSING, exc_type=ImportError)
linked = pytest.importorskip("kvlockstep.impl.engines.sglang.tiers.linked", reason=MISSING, exc_type=ImportError)
restoring = pytest.importorskip("kvlockstep.impl.engines.sglang.tiers.restoring", reason=MISSING, exc_type=ImportError)
windows = pytest.importorskip("kvlockstep.impl.engines.sglang.tiers.windows", reason=MISSING, exc_type=ImportError)

MODEL = model_of("kv_manager")
TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
LINKER = "sglang.srt.mem_cache.unified_cache.unified_cache_linker:UnifiedCacheLinkerWrapper"
QUEUE = "sglang.srt.disaggregation.decode:DecodeTransferQueue"
WINDOW = "sglang.srt.mem_cache.unified_cache.components.swa:SWAComponent"
LAST = [1, 2, 3, 4]


def step(manager: Any, rid: str, n: int) -> None:
    """The launch of a step in which the request computes `n` tokens, and its commit; the copies are taken in."""
    manager.launch()
    manager.transfers()
    manager.waits()
    manager.commit(rid, n)


def end_all(manager: Any) -> list[Any]:
    """All that was submitted ends, and is heard of."""
    ended = manager.transfers()
    for transfer in ended:
        if not transfer.waited:
            manager.complete(transfer.id, True)
    manager.poll()
    return list(ended)


def stored(make: Any, **options: Any) -> Any:
    """A request has come and gone, and its pages are on the host only."""
    manager = make(8, 2, **options)
    assert manager.admit("a", LAST, None, 4) == 0
    step(manager, "a", 4)
    end_all(manager)
    manager.finish("a")
    manager.evict_all()
    end_all(manager)
    assert manager.free_now() == manager.total
    assert sorted(manager.tier("host").cached) == [0, 1]
    return manager


@pytest.mark.parametrize(
    ("target", "waited"),
    [
        ("sglang-hicache", False),
        ("sglang-hicache-python", False),
        ("sglang-hicache-back", True),
        ("sglang-hicache-back-python", True),
        ("sglang-hicache-selective", False),
        ("sglang-hicache-selective-python", False),
        ("sglang-hicache-window", False),
        ("sglang-hicache-window-back", True),
        ("sglang-hicache-state", False),
        ("sglang-hicache-state-back", True),
        ("sglang-restore", False),
        ("sglang-restore-python", False),
        ("sglang-restore-back", True),
        ("sglang-restore-selective", False),
    ],
)
def test_no_false_alarm(target: str, waited: bool) -> None:
    outcome = walk(MODEL, target_or_skip("kv_manager", target).factory, 2_500)
    assert outcome.failure is None, outcome.failure.message
    met = {goal for goal, n in outcome.reach.items() if n}
    assert {"store", "load", "part_loaded", "tier_eviction"} <= met
    assert ("abort_loading" in met) == target.startswith("sglang-restore")
    assert ("store_outlives" in met) != waited


@pytest.mark.parametrize("target", ["sglang-linker", "sglang-linker-python"])
def test_no_false_alarm_over_a_store(target: str) -> None:
    outcome = walk(MODEL, target_or_skip("kv_manager", target).factory, 2_500)
    assert outcome.failure is None, outcome.failure.message
    met = {goal for goal, n in outcome.reach.items() if n}
    assert {"store", "store_fails", "load", "part_loaded", "tier_eviction", "store_outlives"} <= met


def test_what_comes_from_a_store_belongs_to_the_request_until_it_is_published() -> None:
    manager = linked.make_linked(9, 2)
    assert manager.admit("a", LAST, None, 4) == 0
    step(manager, "a", 4)
    end_all(manager)
    manager.finish("a")
    manager.evict_all()
    assert manager.admit("b", [*LAST, 5], None, 5) == 4
    assert manager.admit("c", [*LAST, 6], None, 5) == 4
    manager.launch()
    (load,) = manager.transfers()
    assert (load.rids, len(load.pairs), manager.waits()) == (["b", "c"], 4, [load.id])
    assert set(manager.slots("b")).isdisjoint(manager.slots("c")), "each has a copy of its own"
    manager.commit("b", 1)
    manager.commit("c", 1)
    assert manager.slots("b")[:4] == manager.slots("c")[:4]


def test_an_offload_that_fails_is_nothing_to_find() -> None:
    manager = linked.make_linked(8, 2)
    manager.admit("a", LAST, None, 4)
    step(manager, "a", 4)
    (offload,) = manager._store.pending
    assert manager.limbo() == 0
    manager.finish("a")
    assert manager.limbo() == 4
    manager.complete(offload[0], False)
    manager.poll()
    manager.evict_all()
    assert (manager.limbo(), len(manager.tier("store").free)) == (0, 8)
    assert manager.admit("b", [*LAST, 5], None, 5) == 0


@pytest.mark.parametrize(
    "make", [tiered.make_through, tiered.make_through_rust, tiered.make_back, tiered.make_back_rust]
)
def test_an_admission_is_answered_at_once_and_loads_in_its_step(make: Any) -> None:
    manager = stored(make)
    assert manager.admit("b", [*LAST, 5], None, 5) == 4
    assert manager.transfers() == [], "the batch is not made yet"
    manager.launch()
    (load,) = manager.transfers()
    assert (load.kind, load.rids, sorted(unit for unit, _ in load.pairs)) == ("load", ["b"], [0, 1])
    assert manager.waits() == [load.id]
    assert manager.waits() == []
    assert {slot // 2 for slot in manager.slots("b")} >= {block for _, block in load.pairs}


@pytest.mark.parametrize("make", [restoring.make_through, restoring.make_through_rust, restoring.make_back])
def test_the_decode_side_waits_for_what_it_restores(make: Any) -> None:
    manager = stored(make)
    assert manager.admit("b", [*LAST, 5], None, 5) == Loading(4)
    (load,) = manager.transfers()
    assert (load.kind, load.rids) == ("load", ["b"])
    assert len(manager.slots("b")) == 5, "the slots of the whole prompt are there"
    assert manager.ready("b") is None
    manager.complete(load.id, True)
    assert manager.ready("b") == 4
    assert manager.reserve("b", 1)
    step(manager, "b", 1)
    assert len(manager.slots("b")) == 5


def test_who_finds_what_is_being_restored_waits_for_it() -> None:
    manager = stored(restoring.make_through)
    assert manager.admit("b", [*LAST, 5], None, 5) == Loading(4)
    (load,) = manager.transfers()
    assert manager.admit("c", [*LAST, 6], None, 5) == Loading(4)
    assert manager.transfers() == [], "it needs no load of its own"
    manager.complete(load.id, True)
    assert manager.ready("c") == 4


def test_a_load_is_over_when_all_in_front_of_it_are() -> None:
    manager = restoring.make_through(12, 2)
    for rid, first in (("a", 1), ("b", 7)):
        manager.admit(rid, [first, first], None, 2)
        step(manager, rid, 2)
        manager.finish(rid)
    end_all(manager)
    manager.evict_all()
    loads = []
    for rid, first in (("c", 1), ("d", 7)):
        assert manager.admit(rid, [first, first, 5], None, 3) == Loading(2)
        loads += manager.transfers()
    manager.complete(loads[1].id, True)
    assert (manager.ready("c"), manager.ready("d")) == (None, None)
    manager.complete(loads[0].id, True)
    assert (manager.ready("c"), manager.ready("d")) == (2, 2)


def test_the_engine_restores_three_at_a_time() -> None:
    """The fourth is promised and not begun: it has its first slots, and those behind the gap are in limbo."""
    manager = restoring.make_three_loads(24, 2)
    for first in range(4):
        manager.admit(f"a{first}", [first, first], None, 2)
        step(manager, f"a{first}", 2)
        manager.finish(f"a{first}")
    end_all(manager)
    manager.evict_all()
    said = [manager.admit(f"b{first}", [first, first, 9], None, 3) for first in range(4)]
    assert said == [Loading(2)] * 4
    loads = manager.transfers()
    assert [load.rids for load in loads] == [["b0"], ["b1"], ["b2"]]
    assert [len(manager.slots(f"b{first}")) for first in range(4)] == [3, 3, 3, 0]
    assert manager.limbo() == 2
    manager.complete(loads[0].id, True)
    manager.poll()
    assert manager.ready("b3") is None
    assert [load.rids for load in manager.transfers()] == [["b3"]]
    assert (len(manager.slots("b3")), manager.limbo()) == (3, 0)


@pytest.mark.parametrize("policy", ["write_through", "write_back", "write_through_selective"])
def test_both_cores_have_the_same_host_pages(policy: str) -> None:
    """One view is read from the nodes of the tree, the other from the queues of the controller."""

    class Both(tiered.TieredManager):  # type: ignore[misc]
        def tier(self, name: str) -> Any:
            of_nodes = self._host.units()
            of_queues = self._host._of_queues(of_nodes.free, self.tiers[name])
            assert sorted(of_nodes.cached) == sorted(of_queues.cached)
            assert sorted(of_nodes.storing) == sorted(of_queues.storing)
            return of_nodes

    assert walk(MODEL, partial(Both, core="python", write_policy=policy), 1_500).failure is None


def starts_no_load(original: Any, self: Any) -> int:
    return -1


def stores_without_a_lock(original: Any, self: Any, action: Any, write_back: bool = False) -> Any:
    return original(self, action, write_back=True)


def keeps_the_host_locked(original: Any, self: Any, finish_count: Any = None) -> None:
    self.dec_host_lock_ref, kept = lambda *_: None, self.dec_host_lock_ref
    try:
        original(self, finish_count=finish_count)
    finally:
        self.dec_host_lock_ref = kept


def loads_the_window_backwards(original: Any, self: Any, node: Any, phase: Any, **options: Any) -> Any:
    transfers = original(self, node, phase, **options)
    for transfer in transfers or () if phase.name == "LOAD_BACK" else ():
        transfer.host_indices = transfer.host_indices.flip(0)
    return transfers


def asks_for_no_event(original: Any, self: Any, index: int) -> bool:
    return True


def forgets_the_restored(original: Any, self: Any, asked: Any) -> None:
    asked.hicache_restored_kv_indices = asked.hicache_restored_kv_indices.flip(0)
    original(self, asked)


def hashes_from_the_start(original: Any, self: Any, key: Any, result: Any, device_hit_len: int) -> Any:
    """The tail of a prefix is looked up as if nothing stood in front of it."""
    self.cache.get_last_hash_value, kept = lambda node: "", self.cache.get_last_hash_value
    try:
        return original(self, key[device_hit_len:], result, 0) if device_hit_len else original(self, key, result, 0)
    finally:
        self.cache.get_last_hash_value = kept


@pytest.mark.parametrize(
    ("target", "owner", "method", "broken", "laws"),
    [
        ("sglang-linker-python", LINKER, "_tail_hashes", hashes_from_the_start, {"prefix_soundness"}),
        ("sglang-hicache", TREE, "ready_to_load_host_cache", starts_no_load, {"prefix_soundness"}),
        (
            "sglang-hicache-python",
            TREE,
            "_execute_and_commit_kv_backup",
            stores_without_a_lock,
            {"transfer_isolation", "source_stable"},
        ),
        ("sglang-hicache-python", TREE, "loading_check", keeps_the_host_locked, {"quiescence"}),
        (
            "sglang-hicache-window-python",
            WINDOW,
            "build_hicache_transfers",
            loads_the_window_backwards,
            {"prefix_soundness"},
        ),
        ("sglang-restore", TREE, "is_load_back_event_done", asks_for_no_event, {"load_before_read"}),
        (
            "sglang-restore",
            QUEUE,
            "_commit_hicache_local_restore_to_req",
            forgets_the_restored,
            {"prefix_soundness", "error_contract"},
        ),
    ],
)
def test_a_bug_in_the_engine_is_found(
    monkeypatch: pytest.MonkeyPatch, target: str, owner: str, method: str, broken: Any, laws: set[str]
) -> None:
    factory = target_or_skip("kv_manager", target).factory
    kind = resolve_name(owner)
    original = getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda *args, **options: broken(original, *args, **options))
    outcome = walk(MODEL, factory, 3_000)
    assert outcome.failure is not None
    assert outcome.failure.law in laws, outcome.failure.message


@pytest.mark.parametrize(
    ("known", "repaired"),
    [
        ("sglang-window-load-uncounted", windows.make_pinned),
        ("sglang-restore-merged", restoring.make_through_rust),
        ("sglang-restore-evicts-promise", restoring.make_back),
        ("sglang-restore-too-short", restoring.make_through_rust),
    ],
)
def test_a_known_divergence_is_gone_where_it_is_repaired(known: str, repaired: Any) -> None:
    (entry,) = [divergence for divergence in known_divergences() if divergence.id == known]
    trace = load_trace(entry.trace)
    with Watchdog(20.0).watching() as watchdog:
        assert run_ops(MODEL, resolve_name(entry.target), trace.scope, trace.ops, watchdog).law == entry.law
        assert run_ops(MODEL, repaired, trace.scope, trace.ops, watchdog) is None


def test_an_instance_that_computes_its_prompts_computes_what_is_too_short_to_load() -> None:
    manager = stored(tiered.make_through_rust, least=10)
    assert manager.admit("b", [*LAST, 5], None, 5) == 0
    outcome = walk(MODEL, partial(tiered.make_through_rust, least=10), 2_500)
    assert outcome.failure is None, outcome.failure.message
    assert outcome.reach["load"]


def test_the_merge_does_not_depend_on_the_size_of_the_host_pool() -> None:
    (entry,) = [divergence for divergence in known_divergences() if divergence.id == "sglang-restore-merged"]
    trace = load_trace(entry.trace)
    with Watchdog(20.0).watching() as watchdog:
        failure = run_ops(MODEL, partial(restoring.make_undrained, ratio=2), trace.scope, trace.ops, watchdog)
    assert failure is not None
    assert failure.law == entry.law
