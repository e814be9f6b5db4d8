"""The kv_store on tensors: in lockstep with plain lists, bit by bit, in every dtype and layout; and memory sizing."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
from driving import FEW, explore, walk
from slow import slow
from watched import watched

from kvlockstep.drivers.hypothesis_machine import machine_for
from kvlockstep.impl.faulty import faults_of
from kvlockstep.impl.kv_store.quantised import QuantisedStore
from kvlockstep.impl.kv_store.store import DTYPES, KVStore, runs
from kvlockstep.models.core.op import NotEnabled, Op
from kvlockstep.models.kv_store import KVStoreModel
from kvlockstep.models.kv_store.commands import QUANTISED
from kvlockstep.properties.kv_store import SPECIAL_BITS, row_of
from kvlockstep.properties.kv_write.quantised import code_error, decoded_error, scale_error
from kvlockstep.properties.kv_write.rows import KINDS, SEEDS
from kvlockstep.reference.errors import InvalidArgument, UnknownSlot
from kvlockstep.reference.kv.shape import CODES, ITEM_BYTES, KVShape, blocks_within
from kvlockstep.reference.kv_store import LAYOUTS, PAD_SLOT, KVStoreTarget
from kvlockstep.reference.kv_store import KVStore as Reference
from kvlockstep.reference.kv_store.quantising import LEAST_SCALE, quantised
from kvlockstep.reference.kv_write.contract import WriteTraits
from kvlockstep.reference.kv_write.geometry import Geometry
from kvlockstep.reference.kv_write.numbers import decode, encode

BOTH = pytest.mark.parametrize("make", [Reference, KVStore], ids=["reference", "optimised"])


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", [True, False])
def test_host_blocks_may_lie_on_another_card(kernels):
    if torch.cuda.device_count() < 2:
        pytest.skip("one card or none")
    outcome = walk(KVStoreModel, partial(KVStore, device="cuda:0", host_device="cuda:1", kernels=kernels), 3_000)
    assert outcome.failure is None, outcome.failure


def test_a_host_that_cannot_be_reached_is_refused():
    with pytest.raises(InvalidArgument, match="host_device=meta: cpu cannot reach it"):
        KVStore(1, 1, 1, KVShape(1, 1, 2, "bfloat16"), "layer_major", host_device="meta")


def test_agrees_with_the_reference_and_reaches_everything(device):
    outcome = walk(KVStoreModel, partial(KVStore, device=device), 2_000 if device == "cpu" else 3_000)
    assert outcome.failure is None, outcome.failure
    missed = {goal.id for goal in KVStoreModel.goals if not outcome.reach[goal.id]}
    assert missed == KVStoreModel(KVStoreModel.scopes[0], KVStore).unreachable()


# The larger ones take several seconds each.
SMALL = sorted(KVStoreModel.small_scopes, key=lambda scope: scope.blocks + scope.host_blocks)


@pytest.mark.parametrize("scope", [SMALL[0], *slow(*SMALL[1:])], ids=str)
def test_agrees_in_every_state_of_a_small_scope(scope):
    outcome = watched(explore, KVStoreModel, KVStore, scope, steps=60_000)
    assert outcome.failure is None
    assert outcome.exhausted
    assert outcome.states >= 16


class FullReference(Reference):
    """The reference with all that a target may have."""

    quantises = copies_rows = guarded = True


@pytest.mark.parametrize("make", [FullReference, QuantisedStore])
def test_a_store_that_quantises_agrees_and_reaches_everything(make, device):
    steps = 2_500 if device == "cpu" else 3_000
    factory = partial(make, device=device) if make is QuantisedStore else make
    outcome = walk(KVStoreModel, factory, steps)
    assert outcome.failure is None, outcome.failure
    missed = {goal.id for goal in KVStoreModel.goals if not outcome.reach[goal.id]}
    assert missed == KVStoreModel(KVStoreModel.scopes[0], make).unreachable() == {"special_bits", "special_copied"}


@pytest.mark.parametrize(("given", "kept"), sorted({*QUANTISED.values()}))
def test_what_is_quantised_has_its_scale_its_codes_and_is_read_back(given, kept):
    """By the laws of kv_write, which know nothing of how the reference computes."""
    geometry = Geometry(1, 1, 1, 1, 6, 6, given, kept, scale="row")
    traits = WriteTraits(scale="row")
    for stamp in range(len(KINDS) * SEEDS):
        row = row_of(stamp, 0, 0, KVShape(1, 1, 6, kept, given))
        codes, scales = quantised(row, KVShape(1, 1, 6, kept, given))
        wrong = scale_error(geometry, traits, row, scales), code_error(geometry, traits, row, codes, scales)
        assert wrong == (None, None)
        assert decoded_error(geometry, traits, row, codes, scales) is None
        for element, bits in enumerate(row):
            number, found = decode(bits, given), decode(codes[element], kept)
            assert math.copysign(1, number) == math.copysign(1, found) or kept == "int8"


@pytest.mark.parametrize("kept", CODES)
def test_nothing_is_divided_by_zero(kept):
    shape = KVShape(1, 2, 1, kept, "float32")
    codes, scales = quantised([0, encode(1e-40, "float32")], shape)
    assert [decode(bits, "float32") for bits in scales] == [LEAST_SCALE, LEAST_SCALE]
    assert [decode(code, kept) for code in codes] == [0.0, 0.0]


def test_each_head_has_a_scale_that_copies_and_swaps_move(device):
    store = QuantisedStore(3, 1, 1, KVShape(2, 2, 2, "int8", "float32"), "layer_major", device=device)
    row = [encode(number, "float32") for number in (127.0, -1.0, 254.0, 2.0)]
    store.write(1, [0], [row], [row[::-1]])
    ones, twos = (encode(number, "float32") for number in (1.0, 2.0))
    kept = ([[127, 255, 127, 1]], [[1, 127, 255, 127]])
    assert store.gather(1, [0]) == kept
    store.copy_blocks([(0, 2)])
    store.swap_out([(2, 0)])
    store.swap_in([(0, 1)])
    for slot in range(3):
        assert store.gather(1, [slot]) == kept
        assert store.scales(1, [slot]) == ([[ones, twos]], [[twos, ones]])
        assert store.scales(0, [slot]) == ([[0, 0]], [[0, 0]])
    assert store.scales_host(1, [0]) == store.scales(1, [0])


@pytest.mark.parametrize("make", [Reference, QuantisedStore])
def test_what_is_not_finite_is_not_quantised(make):
    store = make(1, 1, 0, KVShape(1, 1, 2, "int8", "bfloat16"), "slot_major")
    for bits in (0x7F80, 0xFFC1):
        with pytest.raises(InvalidArgument):
            store.write(0, [0], [[0, bits]], [[0, 0]])
    assert store.gather(0, [0]) == ([[0, 0]], [[0, 0]])


@pytest.mark.parametrize("shape", [("float16", "float32"), ("int8", "int8"), ("int8", "int4")], ids=str)
@pytest.mark.parametrize("make", [Reference, QuantisedStore])
def test_codes_are_of_floats(make, shape):
    with pytest.raises(InvalidArgument, match="codes are"):
        make(1, 1, 0, KVShape(1, 1, 2, *shape), "slot_major")


def test_a_store_that_does_not_quantise_says_so():
    with pytest.raises(InvalidArgument, match="QuantisedStore"):
        KVStore(1, 1, 0, KVShape(1, 1, 2, "int8", "float32"), "slot_major")


class Narrow(Reference):
    """Has block copies only, of blocks that are apart, and rows of multiples of 8 bytes."""

    copies = "copy_blocks"
    copies_rows = apart = True
    word = 8

    def __init__(self, blocks, block_size, host_blocks, shape, layout):
        super().__init__(blocks, block_size, host_blocks, shape, layout)
        self.shape = shape

    def copy_blocks(self, pairs):
        super().copy_blocks(pairs)
        assert not {s for s, _ in pairs} & {t for _, t in pairs}

    def copy_rows(self, pairs):
        super().copy_rows(pairs)
        assert not {s for s, _ in pairs} & {t for _, t in pairs}

    def copy_prefix(self, *_):
        raise AssertionError

    swap_in = swap_out = copy_prefix


def test_traits_limit_what_a_target_is_asked_for():
    outcome = walk(KVStoreModel, Narrow, 3_000)
    assert outcome.failure is None, outcome.failure
    missed = {goal.id for goal in KVStoreModel.goals if not outcome.reach[goal.id]}
    assert missed == KVStoreModel(KVStoreModel.scopes[0], Narrow).unreachable()
    assert {"copy", "run", "row"} & missed == set()
    assert {"chain", "cycle", "prefix", "swap_in", "rows_chain", "scales_read"} <= missed
    for scope in KVStoreModel.scopes:
        shape = KVStoreModel(scope, Narrow).target.shape
        assert shape.heads * shape.head_dim * shape.item_bytes % 8 == 0


def test_a_simpler_operation_that_the_traits_forbid_is_not_played():
    model = KVStoreModel(KVStoreModel.scopes[0], Narrow)
    for op in (
        Op("copy_blocks", pairs=[(0, 1), (1, 2)]),
        Op("copy_rows", pairs=[(0, 0)]),
        Op("swap_out", pairs=[(0, 0)]),
        Op("scales", layer=0, slots=[0]),
    ):
        with pytest.raises(NotEnabled):
            model.step(op)
    model.step(Op("copy_blocks", pairs=[(0, 1)]))


class TestKVStoreMachine(machine_for(KVStoreModel, KVStore).TestCase):
    settings = FEW


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
