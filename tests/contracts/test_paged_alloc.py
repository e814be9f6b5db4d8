"""paged_alloc: the reference and the allocator on tensors, by the laws and by hand."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from driving import FEW, explore, walk
from watched import watched

from kvlockstep.drivers.hypothesis_machine import machine_for
from kvlockstep.impl.faulty import faults_of
from kvlockstep.impl.paged_alloc import PagedAlloc
from kvlockstep.models.paged_alloc import PagedAllocModel
from kvlockstep.properties import paged_alloc as laws
from kvlockstep.properties.paged_alloc import Batch, Pool
from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.paged_alloc.allocator import PagedAlloc as Reference
from kvlockstep.reference.paged_alloc.contract import PagedAllocTarget

BOTH = pytest.mark.parametrize("make", [Reference, PagedAlloc], ids=["reference", "optimised"])


def test_the_reference_holds_and_reaches_everything():
    outcome = walk(PagedAllocModel, Reference, 4_000)
    assert outcome.failure is None, outcome.failure
    assert not [goal.id for goal in PagedAllocModel.goals if not outcome.reach[goal.id]]


def test_ours_holds_and_reaches_everything(device):
    outcome = walk(PagedAllocModel, partial(PagedAlloc, device=device), 4_000)
    assert outcome.failure is None, outcome.failure
    assert not [goal.id for goal in PagedAllocModel.goals if not outcome.reach[goal.id]]


@pytest.mark.parametrize("scope", PagedAllocModel.small_scopes, ids=str)
def test_holds_in_every_state_of_a_small_scope(scope):
    outcome = watched(explore, PagedAllocModel, PagedAlloc, scope, steps=60_000)
    assert outcome.failure is None
    assert outcome.exhausted
    assert outcome.states >= 16


class TestPagedAllocMachine(machine_for(PagedAllocModel, PagedAlloc).TestCase):
    settings = FEW


def test_every_law_names_a_fault():
    assert {law.id for law in PagedAllocModel.own_laws} <= {fault.law for fault in faults_of("paged_alloc")}


@BOTH
def test_meets_the_protocol(make):
    assert isinstance(make(2, 2), PagedAllocTarget)


@BOTH
@pytest.mark.parametrize("sizes", [(-1, 2), (2, 0)])
def test_a_pool_that_cannot_be_is_refused(make, sizes):
    with pytest.raises(InvalidArgument, match="no such pool"):
        make(*sizes)


@BOTH
def test_a_partly_filled_page_is_filled_first(make):
    pool = make(4, 4)
    first = [int(slot) for slot in pool.extend([0], [6], [-1])]
    assert first == [0, 1, 2, 3, 4, 5]
    more = [int(slot) for slot in pool.extend([6, 0], [9, 1], [5, -1])]
    assert more == [6, 7, 8, 12]
    assert pool.available() == 0
    assert pool.extend([0], [1], [-1]) is None
    assert [int(slot) for slot in pool.decode([10], [8])] == [9]
    pool.free(more[3:])
    assert list(pool.free_pages()) == [3]


@BOTH
def test_numbers_of_pages_are_the_engines_own(make):
    class FromOne(make):
        def extend(self, starts, lengths, last):
            slots = super().extend(starts, lengths, [slot - self._size if slot >= 0 else slot for slot in last])
            return None if slots is None else [int(slot) + self._size for slot in slots]

        def decode(self, lengths, last):
            return self.extend([length - 1 for length in lengths], lengths, last)

        def free(self, slots):
            super().free([slot - self._size for slot in slots])

        def free_pages(self):
            return [page + 1 for page in super().free_pages()]

    assert walk(PagedAllocModel, FromOne, 1_000).failure is None


def test_a_law_sees_what_no_fault_does():
    pool = Pool([1, 2], 4)
    batch = Batch(2, [0], [2], [-1], [2, 3], pool, pool)
    assert laws.no_aliasing(batch) is None
    assert laws.no_aliasing(batch._replace(slots=[0, 1])) == "page 0 was handed out, which was not free"
    twice = batch._replace(starts=[0, 0], lengths=[1, 1], last_slots=[-1, -1], slots=[2, 2])
    assert laws.no_aliasing(twice) == "page 1 was handed out 2 times in one batch"
    assert (
        laws.page_order(batch._replace(slots=[2, 4]))
        == "position 1 of request 0 has slot 4, not 3 behind its predecessor"
    )
    assert "inside of one" in laws.page_order(batch._replace(slots=[3, 4]))
    assert "was served with 0 free" in laws.admission_honesty(batch._replace(before=Pool([], 0)))
    assert "was refused with 2 free" in laws.admission_honesty(batch._replace(slots=None))
    assert laws.conservation(Counter([0]), pool, [0, 1, 2]) is None
    assert "neither free nor held" in laws.conservation(Counter(), pool, [0, 1, 2])
    assert "does not exist" in laws.conservation(Counter(), pool, [1])
