"""The kernels, on a GPU or else in Triton's interpreter: in lockstep with lists; stamps; acquire on the device."""

from __future__ import annotations

import itertools
import random
from functools import partial

import pytest
import torch
from driving import walk

from kvlockstep.impl.kv_store import KVStore
from kvlockstep.impl.kv_store.far_apart import FarStore
from kvlockstep.impl.kv_store.quantised import QuantisedStore
from kvlockstep.models.kv_store import KVStoreModel
from kvlockstep.reference.kv.shape import ITEM_BYTES, KVShape
from kvlockstep.reference.kv_store import LAYOUTS

pytest.importorskip("triton")

from kvlockstep.impl import kernels as kv_kernels
from kvlockstep.impl.faulty.kv_store._narrow_offsets import NarrowOffsets

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] * (DEVICE == "cuda")
MASK = (1 << 64) - 1
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
ONE = 0x3F800000


OFFSET_BITS = 9 if DEVICE == "cpu" else 32
FAR_BYTES = 10 << OFFSET_BITS  # more than 1 << OFFSET_BITS words of 8 bytes


def store_of(*sizes, **options):
    return KVStore(*sizes, device=DEVICE, kernels=True, **options)


def test_agrees_with_the_reference():
    outcome = walk(KVStoreModel, store_of, 100 if DEVICE == "cpu" else 3000, seed=2)
    assert outcome.failure is None, outcome.failure
    reached = {goal.id for goal in KVStoreModel.goals if outcome.reach[goal.id]}
    assert {"chain", "cycle", "prefix_tail", "prefix_overlap", "swap_in", "swap_many", "special_copied"} <= reached


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_odd_sizes(layout, dtype):
    """Rows of 3 x 5 elements are not whole words of 8 bytes."""
    plain = KVStore(6, 3, 2, KVShape(3, 3, 5, dtype), layout)
    store = store_of(6, 3, 2, KVShape(3, 3, 5, dtype), layout)
    plain.kv.view(torch.uint8).random_(0, 256)
    store.kv.view(torch.uint8).copy_(plain.kv.view(torch.uint8))
    for each in (plain, store):
        each.copy_blocks([(0, 3), (3, 0), (1, 5)])
        each.copy_prefix([0, 1], [2, 4], 4)
        each.swap_out([(4, 1), (0, 0)])
        each.swap_in([(1, 3)])
    assert torch.equal(plain.kv.view(torch.uint8), store.kv.cpu().view(torch.uint8))
    slots = list(range(18))
    assert all(plain.gather(layer, slots) == store.gather(layer, slots) for layer in range(3))
    assert plain.gather_host(1, slots[:6]) == store.gather_host(1, slots[:6])


def test_a_prefix_is_copied_whatever_its_tables_share():
    """Every pair of tables of three blocks, the last of which is copied in part."""
    sizes = 3, 2, 0, KVShape(1, 1, 2, "int8"), "layer_major"
    plain, store = KVStore(*sizes), store_of(*sizes)
    before = torch.arange(plain.kv.numel(), dtype=plain.kv.dtype).view(plain.kv.shape)
    for source, target in itertools.product(itertools.product(range(3), repeat=3), itertools.permutations(range(3))):
        for each in (plain, store):
            each.kv.copy_(before)
            each.copy_prefix(source, target, 5)
        assert torch.equal(plain.kv, store.kv.cpu()), (source, target)


def expected_word(stamp, plane, at, size):
    """The word number `at` of a stamp in a plane, as an unsigned number of `size` bytes."""
    mixed = stamp * kv_kernels.STAMP_FACTOR.value + (plane + 1) * kv_kernels.PLANE_FACTOR.value
    return ((mixed & MASK) ^ (at * kv_kernels.WORD_FACTOR.value & MASK)) % 256**size


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "dim", "word"), [("bfloat16", 8, 8), ("float32", 1, 4), ("int8", 3, 1)])
def test_stamps_say_what_they_are(layout, dtype, dim, word):
    shape = KVShape(2, 1, dim, dtype)
    store = store_of(3, 2, 0, shape, layout)
    slots = torch.tensor([4, 1, 0], device=DEVICE)
    stamps = torch.tensor([7, -1, 1 << 40], device=DEVICE)
    store.moves.stamp(slots, stamps)
    assert store.moves.verify(slots, stamps).tolist() == [0, 0, 0]
    for layer in range(2):
        for plane, rows in enumerate(store.load(layer, slots)):
            words = rows.cpu().view(torch.uint8).view(3, -1, word)
            found = [[int.from_bytes(bytes(w.tolist()), "little") for w in row] for row in words]
            wanted = [
                [expected_word(stamp, 2 * layer + plane, at, word) for at in range(len(words[0]))]
                for stamp in stamps.tolist()
            ]
            assert found == wanted
    assert not store.load(0, torch.tensor([2, 3, 5], device=DEVICE))[0].view(torch.uint8).any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float16"])
def test_one_wrong_bit_is_counted(layout, dtype):
    store = store_of(4, 2, 0, KVShape(2, 2, 8, dtype), layout)
    slots, stamps = torch.arange(8, device=DEVICE), torch.arange(8, device=DEVICE) + 100
    store.moves.stamp(slots, stamps)
    bits = store.values(1)[3, 1].view(torch.uint8)
    bits[1, 5] ^= 128
    assert store.moves.verify(slots, stamps).tolist() == [0, 0, 0, 0, 0, 0, 0, 1]
    store.copy_blocks([(0, 3)])
    copied = torch.tensor([100, 101], device=DEVICE)
    assert store.moves.verify(slots[6:], copied).tolist() == [0, 0]
    store.copy_prefix([1], [0], 1)
    moved = torch.tensor([102, 101], device=DEVICE)
    assert store.moves.verify(slots[:2], moved).tolist() == [0, 0]
    assert all(store.moves.verify(slots[:1], stamps[:1]).tolist())


def acquire_by_the_book(stack, wanted, most):
    """What acquire promises, one request after the other."""
    taken, status, full = [], [], False
    for want in wanted:
        malformed = not 0 <= want <= most
        full |= not malformed and want > len(stack)
        got = [] if full or malformed else stack[len(stack) - want :]
        del stack[len(stack) - len(got) :]
        taken.append(got + [-1] * (most - len(got)))
        status.append(0 if not want else 1 if got else 2)
    return taken, status


@pytest.mark.parametrize("seed", range(12))
def test_acquire_on_the_device(seed):
    draw = random.Random(seed)
    blocks, requests, most = draw.randrange(1, 40), draw.randrange(1, 20), draw.randrange(1, 4)
    stack = draw.sample(range(blocks), blocks)
    free = draw.randrange(blocks + 1)
    wanted = [draw.choice((0, 0, 1, 1, 1, 2, most, most + 1, -1)) for _ in range(requests)]
    number = partial(torch.tensor, dtype=torch.int32, device=DEVICE)
    top, taken, status = number([free]), number([[7] * most] * requests), number([9] * requests)
    kv_kernels.acquire(number(stack), top, number(wanted), taken, status)
    left = stack[:free]
    assert (taken.tolist(), status.tolist()) == acquire_by_the_book(left, wanted, most)
    assert top.item() == len(left)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_than_two_to_the_31_elements(layout):
    if DEVICE == "cpu":
        pytest.skip("no CUDA device")
    shape = KVShape(2, 8, 128, "int8")
    blocks = (1 << 31) // (16 * 4 * 1024) + 600
    store = store_of(blocks, 16, 2, shape, layout)
    assert store.kv.numel() > 1 << 31
    for block in (0, blocks // 2, blocks - 1):
        slots = torch.arange(block * 16, block * 16 + 16, device=DEVICE)
        store.moves.stamp(slots, slots)
    first, last = torch.arange(16, device=DEVICE), torch.arange(16, device=DEVICE) + 16 * (blocks - 1)
    store.copy_blocks([(blocks - 1, 1), (0, blocks - 2)])
    store.swap_out([(blocks - 1, 1)])
    store.swap_in([(1, blocks - 3)])
    for block, stamps in ((0, first), (blocks - 1, last), (1, last), (blocks - 2, first), (blocks - 3, last)):
        assert not store.moves.verify(first + 16 * block, stamps).any(), block


def walk_far(factory, seed, steps=300 if DEVICE == "cpu" else 1000):
    make = partial(factory, least_bytes=FAR_BYTES, device=DEVICE)
    return walk(KVStoreModel, make, steps, seed=seed, limit=120.0)


def test_codes_and_scales_agree_with_the_reference():
    """Bit by bit, also without a card: the kernel rounds on integers."""
    make = partial(QuantisedStore, device=DEVICE, kernels=True)
    outcome = walk(KVStoreModel, make, 40 if DEVICE == "cpu" else 3000, seed=2)
    assert outcome.failure is None, outcome.failure
    assert outcome.reach["scales_copied"]


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_ties_and_their_neighbours_are_rounded_to_even(given):
    """The largest number is that of the codes, so that the scale is 1 and each number its own quotient."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (codes[1:] + codes[:-1]) / 2
    numbers = torch.cat([codes, ties, *(torch.nextafter(ties, ties * f) for f in (0, 2)), -ties]).to(given)
    store = QuantisedStore(1, 1, 0, KVShape(1, 1, len(numbers), "float8_e4m3fn", NAMES[given]), "slot_major")
    fast = QuantisedStore(1, 1, 0, store.shape, "slot_major", device=DEVICE, kernels=True)
    for each in (store, fast):
        rows = numbers.view(1, 1, -1).to(each.codes.device)
        each.store(0, torch.zeros(1, dtype=torch.int64, device=rows.device), rows, -rows)
    assert fast.scales(0, [0]) == ([[ONE]], [[ONE]])
    assert store.gather(0, [0]) == fast.gather(0, [0])
    assert fast.gather(0, [0])[0][0][:127] == list(range(127))


@pytest.mark.slow
def test_a_store_that_quantises_agrees_far_apart():
    outcome = walk_far(partial(FarStore, make=QuantisedStore, kernels=True), 3, steps=30 if DEVICE == "cpu" else 300)
    assert outcome.failure is None, outcome.failure
    assert outcome.reach["scales_copied"]


def test_far_apart_agrees_with_the_reference():
    outcome = walk_far(partial(FarStore, kernels=True), 3)
    assert outcome.failure is None, outcome.failure


@pytest.mark.parametrize("seed", range(3))
def test_offsets_in_too_few_bits_are_caught(seed):
    """On a GPU 32 bits are too few: the store has more words than that."""
    outcome = walk_far(partial(NarrowOffsets, bits=OFFSET_BITS), seed)
    assert outcome.failure is not None
    assert outcome.failure.law in ("content_equality", "write_isolation")


@pytest.mark.slow
def test_offsets_in_enough_bits_are_not():
    assert walk_far(partial(NarrowOffsets, bits=62), 0).failure is None
