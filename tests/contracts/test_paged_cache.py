"""The optimised paged_cache and the manager on it: in lockstep with the reference, KV in tensors; the laws bite."""

from __future__ import annotations

import random
import time
from functools import partial

import pytest
from driving import FEW, explore, walk
from slow import slow
from watched import watched

from kvlockstep.drivers.episode import missed_goals
from kvlockstep.drivers.hypothesis_machine import machine_for
from kvlockstep.impl.faulty import faults_of
from kvlockstep.impl.kv_manager.paged import PagedManager
from kvlockstep.impl.kv_store.oracle_memory import POISON, TORN, StoreMemory
from kvlockstep.impl.paged_cache import PagedCache
from kvlockstep.impl.paged_cache.queues import RankQueue, RecencyQueue
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.paged_cache import PagedCacheModel
from kvlockstep.properties.law import Refused
from kvlockstep.reference.errors import ContractError, InvalidArgument, OutOfSlots, UnknownSlot
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv_store import LAYOUTS
from kvlockstep.reference.paged_cache import PagedCache as Reference
from kvlockstep.reference.paged_cache.contract import (
    POLICIES,
    Allocation,
    Growth,
    PagedCacheTarget,
    SequenceLive,
    UnknownSequence,
)

SHAPE = KVShape(2, 2, 4, "bfloat16")
BOTH = pytest.mark.parametrize("make", [Reference, PagedCache], ids=["reference", "optimised"])


def test_agrees_with_the_reference_and_reaches_everything():
    outcome = walk(PagedCacheModel, PagedCache, 4_000)
    assert outcome.failure is None, outcome.failure
    assert not [goal.id for goal in PagedCacheModel.goals if not outcome.reach[goal.id]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_its_copies_are_carried_out_on_tensors(layout, monkeypatch):
    factory = partial(PagedCache, tensors=True, layout=layout)
    outcome = walk(PagedCacheModel, factory, 1_500)
    assert outcome.failure is None, outcome.failure
    assert outcome.reach["copy_shared"] > 0 < outcome.reach["copy_registered"]
    monkeypatch.setattr("kvlockstep.impl.kv_store.KVStore.copy_blocks", lambda self, pairs: None)
    assert walk(PagedCacheModel, factory, 4_000).failure.law == "content_equality"


# Those of the policy lru are the largest.
BY_POLICY = {lru: [s for s in PagedCacheModel.small_scopes if (s.policy == "lru") is lru] for lru in (False, True)}


@pytest.mark.parametrize("scope", [*BY_POLICY[False], *slow(*BY_POLICY[True])], ids=str)
def test_agrees_in_every_state_of_a_small_scope(scope):
    outcome = watched(explore, PagedCacheModel, PagedCache, scope, steps=90_000)
    assert outcome.failure is None
    assert outcome.exhausted
    assert outcome.states > 40


class TestPagedCacheMachine(machine_for(PagedCacheModel, PagedCache).TestCase):
    settings = FEW


def test_every_law_names_a_fault():
    assert {law.id for law in PagedCacheModel.own_laws} <= {fault.law for fault in faults_of("paged_cache")}


@BOTH
def test_meets_the_protocol(make):
    assert isinstance(make(4, 2, "lru", SHAPE), PagedCacheTarget)


@BOTH
@pytest.mark.parametrize(
    "sizes",
    [
        (-1, 2, "lru", SHAPE),
        (4, 0, "lru", SHAPE),
        (4, 2, "mru", SHAPE),
        (4, 2, "lru", SHAPE._replace(layers=0)),
        (4, 2, "lru", SHAPE._replace(dtype="float4")),
    ],
    ids=str,
)
def test_refuses_bad_sizes(make, sizes):
    with pytest.raises(InvalidArgument):
        make(*sizes)


@BOTH
def test_a_share_is_written_only_after_its_copy(make):
    cache = make(4, 4, "lru", SHAPE)
    assert cache.allocate(0, 6) == Allocation(0, [0, 1])
    assert cache.fork(0, 1) == [0, 1]
    assert cache.append(1) == Growth([], [(1, 2)])
    assert cache.append(0) == Growth([], [])
    assert (cache.table(0), cache.table(1)) == ([0, 1], [0, 2])
    assert cache.register(0, [7]) == 1
    cache.truncate(0, 3)
    assert cache.append(0, 2) == Growth([1], [(0, 3)])
    assert cache.statistics().copies == 2


@BOTH
def test_a_hole_ends_a_prefix(make):
    cache = make(3, 1, "fifo", SHAPE)
    cache.allocate(0, 3)
    cache.register(0, [10, 11, 12])
    cache.free(0)
    assert cache.idle_blocks() == [2, 1, 0]
    assert cache.evict(1) == [2]
    assert cache.lookup([10, 11, 12]) == [0, 1]
    assert cache.lookup([11, 12]) == []
    cache.allocate(1, 1, [10])
    assert cache.append(1, 2) == Growth([2, 1], [])
    assert cache.lookup([10, 11, 12]) == [0]


@BOTH
def test_the_policies_choose_differently(make):
    victims = {}
    for policy in POLICIES:
        cache = make(3, 1, policy, SHAPE)
        for sequence in range(3):
            cache.allocate(sequence, 1)
            cache.register(sequence, [sequence])
        for sequence in (1, 2, 0):
            cache.free(sequence)
        for sequence in (3, 4):
            cache.allocate(sequence, 1, [1])
            cache.free(sequence)
        cache.allocate(5, 1, [0])
        cache.free(5)
        victims[policy] = cache.evict(3)
    assert victims == {"lru": [2, 1, 0], "fifo": [0, 1, 2], "frequency": [2, 0, 1]}


@BOTH
def test_statistics(make):
    cache = make(10, 4, "lru", SHAPE)
    cache.allocate(0, 9)
    cache.register(0, [1, 2])
    cache.fork(0, 1, 6)
    cache.allocate(2, 9, [1, 9])
    cache.free(0)
    s = cache.statistics()
    assert (s.blocks, s.free, s.cached, s.held, s.shared) == (10, 6, 0, 4, 1)
    assert (s.allocations, s.deallocations, s.evictions, s.copies) == (5, 1, 0, 0)
    assert (s.hits, s.misses, s.hit_rate) == (1, 1, 0.5)
    assert s.utilisation == 0.4
    assert s.fragmentation == (16 - 4 - 2 - 4 - 1) / 16
    assert s.capacity_bytes == 10 * 4 * 2 * 2 * 2 * 4 * 2
    assert s.memory_bytes == 0.4 * s.capacity_bytes
    cache.free(1)
    assert cache.statistics().cached == 1
    assert cache.statistics().memory_bytes == s.memory_bytes


@BOTH
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (("allocate", 0, 1), SequenceLive),
        (("fork", 0, 0), SequenceLive),
        (("fork", 0, 9, 7), InvalidArgument),
        (("allocate", 9, 3, [1, 2]), InvalidArgument),
        (("allocate", 9, -1), InvalidArgument),
        (("allocate", 9, 9), OutOfSlots),
        (("append", 0, 0), InvalidArgument),
        (("append", 9), UnknownSequence),
        (("append", 0, 5), OutOfSlots),
        (("truncate", 0, 7), InvalidArgument),
        (("register", 0, [5], 2), InvalidArgument),
        (("register", 0, [5, 5]), InvalidArgument),
        (("register", 0, [5]), InvalidArgument),
        (("evict", 1), OutOfSlots),
        (("evict", -1), InvalidArgument),
        (("free", 9), UnknownSequence),
        (("ref_count", 4), UnknownSlot),
    ],
    ids=str,
)
def test_refusals_name_their_reason_and_change_nothing(make, call, error):
    cache = make(4, 2, "lru", SHAPE)
    cache.allocate(0, 5)
    cache.register(0, [1])
    before = cache.statistics(), cache.table(0), cache.length(0), cache.registered(), cache.free_blocks()
    with pytest.raises(error, match=call[0]) as raised:
        getattr(cache, call[0])(*call[1:])
    assert isinstance(raised.value, ContractError)
    assert (cache.statistics(), cache.table(0), cache.length(0), cache.registered(), cache.free_blocks()) == before


@pytest.mark.parametrize("queue_type", [RecencyQueue, RankQueue])
def test_queues_are_orders(queue_type):
    rng, queue, model = random.Random(3), queue_type(), {}
    for i in range(5_000):
        if model and rng.random() < 0.5:
            block = rng.choice(list(model))
            queue.remove(block)
            del model[block]
        elif model and rng.random() < 0.2:
            block = min(model, key=model.__getitem__)
            assert queue.pop() == block
            del model[block]
        else:
            block = rng.choice([b for b in range(60) if b not in model])
            rank = (i if queue_type is RecencyQueue else rng.randrange(9), i)
            queue.add(block, rank)
            model[block] = rank
        assert len(queue) == len(model)
        assert queue.order() == sorted(model, key=model.__getitem__)
    if queue_type is RankQueue:
        assert len(queue._heap) <= 2 * len(model) + 18


def microseconds(operation, times=3_000):
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(times):
            operation()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / times


@pytest.mark.parametrize("policy", POLICIES)
def test_costs_do_not_grow_with_the_pool(policy):
    costs = []
    for blocks in (100, 100_000):
        cache = PagedCache(blocks, 16, policy, SHAPE)
        for sequence in range(blocks // 2):
            cache.allocate(sequence, 16)
            cache.register(sequence, [sequence])
            cache.free(sequence)
        live = blocks

        def life(cache=cache, live=live, last=blocks // 2 - 1):
            cache.allocate(live, 24, [last])
            cache.append(live)
            cache.fork(live, live + 1)
            cache.append(live + 1)
            cache.statistics()
            cache.free(live)
            cache.free(live + 1)

        costs.append(microseconds(life))
    assert costs[1] < 3 * costs[0], costs


def manager_holds(steps, seed=1, **settings):
    outcome = walk(KVManagerModel, partial(PagedManager, **settings), steps, seed=seed)
    assert outcome.failure is None, f"{outcome.failure.law}: {outcome.failure.message}"
    return outcome


@pytest.mark.parametrize("policy", POLICIES)
def test_the_manager_holds(policy):
    outcome = manager_holds(5_000, policy=policy)
    assert not missed_goals(KVManagerModel, outcome.reach, outcome.unreachable)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_manager_moves_its_tensors(layout, monkeypatch):
    assert manager_holds(1_500, tensors=True, layout=layout).reach["copies"] > 0
    monkeypatch.setattr(StoreMemory, "copy", lambda self, pairs: None)
    assert walk(KVManagerModel, partial(PagedManager, tensors=True, layout=layout), 20_000).failure is not None


def test_a_withdrawn_copy_gives_its_source_back():
    manager = PagedManager(3, 2)
    assert manager.admit("a", [1, 2, 3], None, 3) == 0
    manager.launch()
    manager.commit("a", 3)
    assert manager.fork("a", "b") == []
    assert manager.reserve("b", 1)
    assert manager.copies() == [(2, 4), (3, 5)]
    manager.preempt("a")
    manager.withdraw("b")
    assert manager.copies() == []
    assert manager.slots("b") == [0, 1, 2, 3]
    assert manager.avail() == 2


def test_a_request_that_is_whole_in_the_cache_computes_one_block():
    manager = PagedManager(5, 4)
    for rid, cached in (("a", 0), ("b", 4), ("c", 4)):
        assert manager.admit(rid, list(range(8)), None, 8) == cached
        manager.launch()
        manager.commit(rid, 8 - cached)
    assert manager.admit("d", list(range(8)), 5, 8) is None
    manager.finish("c")
    assert manager.admit("d", list(range(9)), None, 9) == 8
    assert manager.cache.statistics().hits == 4


class TestStoreMemory:
    def test_a_plane_that_was_missed_shows(self):
        memory = StoreMemory(4, 2)
        memory.write([2, 3, 2], [5, 6, 2**62])
        memory.copy([(2, 4), (3, 5)])
        memory.poison([0])
        assert memory.read([0, 1, 2, 3, 4, 5]) == [POISON, 0, 2**62, 6, 2**62, 6]
        for plane in (memory.store.keys(1), memory.store.values(0)):
            right = plane[2, 1].clone()
            plane[2, 1] = plane[1, 0]
            assert memory.read([4, 5]) == [2**62, TORN]
            plane[2, 1] = right
        assert memory.read([4, 5]) == [2**62, 6]
        assert memory.read([]) == []


def test_a_refused_operation_is_a_refusal_of_its_class():
    model = PagedCacheModel(PagedCacheModel.scopes[0], PagedCache)
    op = next(c for c in PagedCacheModel.commands if c.name == "foreign").propose(model, lambda options: options[0])
    assert model.step(op) == Refused("UnknownSequence")
