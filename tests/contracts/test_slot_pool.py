"""The bitmap slot_pool: in lockstep with the reference, and the same number of words touched at every size."""

from __future__ import annotations

import random

import pytest
from driving import explore, walk
from hypothesis import given
from hypothesis import strategies as st
from watched import watched

from kvlockstep.impl import slot_pool
from kvlockstep.impl.slot_pool import SlotPool
from kvlockstep.models.slot_pool import SlotPoolModel
from kvlockstep.reference.errors import ContractError, InvalidArgument
from kvlockstep.reference.slot_pool import SlotPool as Reference


@pytest.fixture
def words_of_four(monkeypatch):
    """Words of 4 bits, so that a small pool has several levels of summary."""
    monkeypatch.setattr(slot_pool, "_SHIFT", 2)
    monkeypatch.setattr(slot_pool, "_BITS", 4)
    monkeypatch.setattr(slot_pool, "_MASK", 3)


def test_agrees_with_the_reference():
    outcome = walk(SlotPoolModel, SlotPool, 20_000, seed=3)
    assert outcome.failure is None
    assert not [goal.id for goal in SlotPoolModel.goals if not outcome.reach[goal.id]]


@pytest.mark.parametrize("scope", SlotPoolModel.small_scopes, ids=lambda scope: f"{scope.slots} slots")
def test_agrees_with_the_reference_in_every_state(scope):
    outcome = watched(explore, SlotPoolModel, SlotPool, scope)
    assert outcome.failure is None
    assert outcome.exhausted
    assert outcome.states == 4**scope.slots


OPERATIONS = st.tuples(st.sampled_from(("alloc", "alloc", "free", "occupy")), st.integers(-1, 70))


def answer(pool, name, slot):
    try:
        return pool.alloc() if name == "alloc" else getattr(pool, name)(slot)
    except ContractError as error:
        return type(error)


@pytest.mark.usefixtures("words_of_four")
@pytest.mark.parametrize("slots", [1, 4, 5, 16, 17, 64, 65, 70])
def test_agrees_with_several_levels_of_summary(slots):
    rng = random.Random(slots)
    pool, reference = SlotPool(slots), Reference(slots)
    assert len(pool._summaries) == sum(slots > 4**level for level in (1, 2, 3))
    for bias in (0.9, 0.1, 0.5, 0.9, 0.1):
        for _ in range(400):
            name = "alloc" if rng.random() < bias else rng.choice(("free", "free", "occupy"))
            slot = rng.randrange(-1, slots + 1)
            assert answer(pool, name, slot) == answer(reference, name, slot)
            assert pool.free_count == reference.free_count


@given(slots=st.integers(0, 70), operations=st.lists(OPERATIONS, max_size=120))
def test_looks_like_the_reference_after_any_operations(slots, operations):
    pool, reference = SlotPool(slots), Reference(slots)
    for name, slot in operations:
        assert answer(pool, name, slot) == answer(reference, name, slot)
    for slot in range(slots):
        assert pool.is_free(slot) == reference.is_free(slot)
        assert pool.version(slot) == reference.version(slot)


@given(st.sets(st.integers(0, 4999), min_size=1, max_size=60))
def test_lowest_free_slot_across_words(freed):
    pool = SlotPool(5000)
    for _ in range(5000):
        pool.alloc()
    for slot in freed:
        pool.free(slot)
    assert [pool.alloc() for _ in freed] == sorted(freed)
    assert pool.free_count == 0


def test_refuses_a_negative_size():
    with pytest.raises(InvalidArgument, match="slots=-1"):
        SlotPool(-1)


class CountingList(list):
    """A list that counts how often an element is read or written."""

    touched = 0

    def __getitem__(self, index):
        CountingList.touched += 1
        return super().__getitem__(index)

    def __setitem__(self, index, value):
        CountingList.touched += 1
        super().__setitem__(index, value)


def touches(slots: int, live: int, pairs: int = 2_000) -> list[int]:
    """Words touched by each of many operations that free a random held slot and allocate one."""
    pool = SlotPool(slots)
    held = [pool.alloc() for _ in range(live)]
    pool._words = CountingList(pool._words)
    pool._summaries = [CountingList(level) for level in pool._summaries]
    rng = random.Random(1)
    counts = []
    for _ in range(pairs):
        i = rng.randrange(live)
        for operation in (lambda i=i: pool.free(held[i]), lambda i=i: held.__setitem__(i, pool.alloc())):
            CountingList.touched = 0
            operation()
            counts.append(CountingList.touched)
    return counts


def test_touches_as_many_words_at_64_and_at_a_million_slots():
    small, large = touches(64, 60), touches(1_000_000, 60)
    assert small == large
    assert max(large) == 2


def test_touches_a_bounded_number_of_words_when_words_empty_and_fill():
    thousands = touches(4_096, 2_048)
    assert max(thousands) > 2, "no word emptied: the pattern is too easy"
    assert max(touches(1_000_000, 500_000)) <= max(thousands) == max(touches(1_000_000, 2_048))


@pytest.mark.usefixtures("words_of_four")
def test_touches_no_summary_that_stays_as_it_is():
    pool = SlotPool(256)
    for _ in range(256):
        pool.alloc()
    pool.free(0)
    pool._words = CountingList(pool._words)
    pool._summaries = [CountingList(level) for level in pool._summaries]
    CountingList.touched = 0
    pool.free(4)
    assert CountingList.touched == 2 + 2, "the word and the summary above, each read and written"
