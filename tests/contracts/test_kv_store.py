"""The kv_store on tensors: in lockstep with plain lists, bit by bit, in every dtype and layout; and memory sizing."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from driving import explore, random_walk
from watched import watched

from kvlockstep.drivers.hypothesis_machine import machine_for
from kvlockstep.impl.faulty import faults_of
from kvlockstep.impl.kv_store.store import DTYPES, KVStore, runs
from kvlockstep.models.kv_store import KVStoreModel
from kvlockstep.properties.kv_store import SPECIAL_BITS
from kvlockstep.reference.errors import InvalidArgument, UnknownSlot
from kvlockstep.reference.kv.shape import ITEM_BYTES, KVShape, blocks_within
from kvlockstep.reference.kv_store import LAYOUTS, PAD_SLOT, KVStoreTarget
from kvlockstep.reference.kv_store import KVStore as Reference

BOTH = pytest.mark.parametrize("make", [Reference, KVStore], ids=["reference", "optimised"])


def walk(factory, steps, model_type=KVStoreModel):
    return watched(random_walk, model_type, factory, seed=1, steps=steps)


def test_agrees_with_the_reference_and_reaches_everything(device):
    outcome = walk(partial(KVStore, device=device), 15_000 if device == "cpu" else 3_000)
    assert outcome.failure is None, outcome.failure
    assert not [goal.id for goal in KVStoreModel.goals if not outcome.reach[goal.id]]


@pytest.mark.parametrize("scope", KVStoreModel.small_scopes, ids=str)
def test_agrees_in_every_state_of_a_small_scope(scope):
    outcome = watched(explore, KVStoreModel, KVStore, scope, steps=60_000)
    assert outcome.failure is None
    assert outcome.exhausted
    assert outcome.states >= 16


class TestKVStoreMachine(machine_for(KVStoreModel, KVStore).TestCase):
    pass


@pytest.mark.parametrize("fault", faults_of("kv_store"), ids=lambda fault: fault.id)
def test_a_fault_is_caught(fault):
    assert walk(fault.make, 60_000).failure is not None


def test_every_law_names_a_fault():
    assert {law.id for law in KVStoreModel.own_laws} <= {fault.law for fault in faults_of("kv_store")}


@BOTH
def test_meets_the_protocol(make):
    assert isinstance(make(2, 2, 1, KVShape(1, 1, 1, "int8"), "slot_major"), KVStoreTarget)


@BOTH
@pytest.mark.parametrize(
    "sizes",
    [
        (-1, 2, 1, KVShape(1, 1, 1, "int8"), "slot_major"),
        (2, 0, 1, KVShape(1, 1, 1, "int8"), "slot_major"),
        (2, 2, -1, KVShape(1, 1, 1, "int8"), "slot_major"),
        (2, 2, 1, KVShape(1, 0, 1, "int8"), "slot_major"),
        (2, 2, 1, KVShape(1, 1, 1, "int8"), "block_major"),
    ],
    ids=str,
)
def test_refuses_bad_sizes(make, sizes):
    with pytest.raises(InvalidArgument):
        make(*sizes)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_bits_arrive_as_they_are(dtype, layout, device):
    shape = KVShape(2, 1, len(SPECIAL_BITS[dtype]), dtype)
    store = KVStore(3, 2, 2, shape, layout, device=device)
    assert store.kv.dtype == DTYPES[dtype]
    bits = list(SPECIAL_BITS[dtype])
    store.write(1, [1], [bits], [bits[::-1]])
    store.copy_prefix([0], [1], 2)
    store.swap_out([(1, 1)])
    store.write(1, [3, 1], [[0] * 5] * 2, [[0] * 5] * 2)
    store.swap_in([(1, 2)])
    assert store.gather(1, [5]) == ([bits], [bits[::-1]])
    assert store.gather(0, [5]) == ([[0] * 5], [[0] * 5])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_of_a_layer_are_views(layout, device):
    store = KVStore(4, 2, 0, KVShape(3, 2, 5, "bfloat16"), layout, device=device)
    expected = (3, 2, 4, 2, 2, 5) if layout == "layer_major" else (2, 4, 2, 3, 2, 5)
    assert store.kv.shape == expected
    keys, values = torch.randn(2, 3, 2, 5, device=device).bfloat16()
    slots = torch.tensor([7, PAD_SLOT, 2], device=device)
    store.store(2, slots, keys, values)
    assert torch.equal(store.keys(2)[3, 1], keys[0])
    assert torch.equal(store.values(2)[1, 0], values[2])
    loaded = store.load(2, slots[::2])
    assert torch.equal(loaded[0], keys[::2])
    assert torch.equal(loaded[1], values[::2])
    assert not store.keys(0).any()
    assert int(store.kv.count_nonzero()) == 4 * 2 * 5


@BOTH
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_pairs_of_a_copy_are_copied_at_once(make, layout):
    for sources in itertools.product(range(3), repeat=3):
        store = make(3, 1, 0, KVShape(1, 1, 1, "int8"), layout)
        store.write(0, [0, 1, 2], [[1], [2], [3]], [[4], [5], [6]])
        store.copy_blocks(list(zip(sources, range(3), strict=True)))
        assert store.gather(0, [0, 1, 2]) == ([[s + 1] for s in sources], [[s + 4] for s in sources])


@BOTH
def test_a_prefix_may_move_by_one_block(make):
    store = make(4, 2, 0, KVShape(1, 1, 1, "int8"), "layer_major")
    store.write(0, list(range(8)), [[i] for i in range(8)], [[i + 8] for i in range(8)])
    store.copy_prefix([0, 1, 2], [1, 2, 3], 5)
    assert store.gather(0, list(range(8)))[0] == [[0], [1], [0], [1], [2], [3], [4], [7]]


@BOTH
def test_a_duplicate_target_is_an_error_and_changes_nothing(make):
    store = make(3, 1, 2, KVShape(1, 1, 1, "int8"), "layer_major")
    store.write(0, [0], [[1]], [[2]])
    before = store.gather(0, [0, 1, 2])
    for call, argument in (
        ("copy_blocks", [(0, 1), (2, 1)]),
        ("swap_out", [(0, 1), (2, 1)]),
        ("swap_in", [(0, 1), (1, 1)]),
    ):
        with pytest.raises(InvalidArgument, match="twice"):
            getattr(store, call)(argument)
    with pytest.raises(UnknownSlot):
        store.copy_blocks([(0, 1), (0, 3)])
    with pytest.raises(UnknownSlot):
        store.write(0, [-2], [[1]], [[1]])
    assert store.gather(0, [0, 1, 2]) == before


@pytest.mark.parametrize("blocks", [5, 64])
def test_runs_are_the_pairs(blocks):
    pairs = [(i, (i * 7) % blocks) for i in range(blocks)] + [(blocks + i, blocks + i + 3) for i in range(blocks)]
    found = [(source + i, target + i) for source, target, n in runs(pairs) for i in range(n)]
    assert sorted(found) == sorted(pairs)
    assert max(n for _, _, n in runs(pairs)) == blocks


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_is_what_the_tensor_takes(layout):
    for dtype in ITEM_BYTES:
        shape = KVShape(3, 2, 5, dtype)
        store = KVStore(7, 4, 0, shape, layout)
        assert store.memory_bytes == store.kv.numel() * store.kv.element_size() == 7 * 4 * shape.token_bytes
        assert store.blocks_within(store.memory_bytes) == 7
        assert store.blocks_within(store.memory_bytes - 1) == 6


def test_budgets_of_seed_001():
    shape = KVShape(layers=1, heads=8, head_dim=256, dtype="bfloat16")
    assert blocks_within(4 * 1024**3, 1, shape) == 524_288
    assert blocks_within(2_000 * 1024, 1, shape) == 250
    assert blocks_within(2_000 * 1024, 16, shape) == 15
    assert blocks_within(2_000 * 1024, 1, shape.shard(4)) == 1_000
    assert blocks_within(10**18 + 1, 1, KVShape(1, 1, 1, "int8")) == (10**18 + 1) // 2


@pytest.mark.parametrize(("heads", "ranks", "kept"), [(8, 1, 8), (8, 4, 2), (8, 8, 1), (8, 16, 1), (6, 3, 2)])
def test_heads_are_spread_over_ranks(heads, ranks, kept):
    assert KVShape(1, heads, 4, "float16").shard(ranks).heads == kept


@pytest.mark.parametrize(("heads", "ranks"), [(8, 3), (8, 0), (6, 4)])
def test_heads_that_cannot_be_spread(heads, ranks):
    with pytest.raises(InvalidArgument, match="tensor_parallel"):
        KVShape(1, heads, 4, "float16").shard(ranks)


@pytest.mark.parametrize(("budget", "size"), [(-1, 1), (1, 0)])
def test_bad_budgets(budget, size):
    with pytest.raises(InvalidArgument):
        blocks_within(budget, size, KVShape(1, 1, 1, "int8"))
