"""slot_mapping: the reference and the tables on tensors, in lockstep and by hand; who keeps which token."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from driving import FEW, explore, walk
from watched import watched

from kvlockstep.drivers.hypothesis_machine import machine_for
from kvlockstep.impl.slot_mapping import SlotMapping
from kvlockstep.models.slot_mapping import SlotMappingModel
from kvlockstep.models.slot_mapping.commands import SHARDS
from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.slot_mapping.contract import PAD_SLOT, SlotMappingTarget
from kvlockstep.reference.slot_mapping.mapping import SlotMapping as Reference
from kvlockstep.reference.slot_mapping.mapping import slot_offset

BOTH = pytest.mark.parametrize("make", [Reference, SlotMapping], ids=["reference", "optimised"])


def test_agrees_with_the_reference_and_reaches_everything(device):
    outcome = walk(SlotMappingModel, partial(SlotMapping, device=device), 4_000)
    assert outcome.failure is None, outcome.failure
    assert not [goal.id for goal in SlotMappingModel.goals if not outcome.reach[goal.id]]


@pytest.mark.parametrize("scope", SlotMappingModel.small_scopes, ids=str)
def test_agrees_in_every_state_of_a_small_scope(scope):
    outcome = watched(explore, SlotMappingModel, SlotMapping, scope, steps=60_000)
    assert outcome.failure is None
    assert outcome.exhausted
    assert outcome.states >= 16


class TestSlotMappingMachine(machine_for(SlotMappingModel, SlotMapping).TestCase):
    settings = FEW


def test_a_target_without_traits_is_asked_for_nothing_else():
    class Plain:
        def __init__(self, *sizes):
            own = Reference(*sizes)
            for name in ("add", "append", "commit", "committed", "slots"):
                setattr(self, name, getattr(own, name))

    outcome = walk(SlotMappingModel, Plain, 4_000)
    assert outcome.failure is None
    missed = {goal.id for goal in SlotMappingModel.goals if not outcome.reach[goal.id]}
    # `far_slots` is what a target has that declares nothing.
    assert missed == {goal.id for goal in SlotMappingModel.goals if goal.when not in (None, "far_slots")}


@BOTH
def test_meets_the_protocol(make):
    assert isinstance(make(1, 1, 1, 1), SlotMappingTarget)


@BOTH
@pytest.mark.parametrize("sizes", [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)])
def test_sizes_are_positive(make, sizes):
    with pytest.raises(InvalidArgument, match="sizes are positive"):
        make(*sizes)


@BOTH
def test_a_chunk_and_a_decode(make):
    table = make(2, 3, 4, 8)
    table.add(0, [7, 2])
    table.append(1, [5])
    table.commit()
    found = table.slots([0, 1], [0, 3, 4], [2, 3, 4, 1])
    assert list(found) == [30, 31, 8, 21, PAD_SLOT, PAD_SLOT, PAD_SLOT, PAD_SLOT]


@BOTH
def test_a_worker_keeps_every_other_run(make):
    """Two workers, two tokens at a time, blocks of 4: worker 1 keeps tokens 2, 3, 6, 7 of the first 8."""
    table = make(1, 2, 4, 8)
    table.add(0, [3, 1])
    table.commit()
    table.shard(2, 1, 2)
    assert list(table.slots([0], [0, 8], [0, 1, 2, 3, 6, 7, 10, 15])) == [-1, -1, 12, 13, 14, 15, 4, 7]


@pytest.mark.parametrize(("ranks", "rank", "interleave"), SHARDS)
def test_each_token_has_one_worker_and_each_worker_its_places_in_order(ranks, rank, interleave):
    covers = 4 * ranks * interleave
    kept = [slot_offset(position, ranks, rank, interleave) for position in range(covers)]
    assert [offset for offset in kept if offset is not None] == list(range(4 * interleave))
    owners = [[slot_offset(p, ranks, r, interleave) is not None for r in range(ranks)] for p in range(covers)]
    assert all(sum(owner) == 1 for owner in owners)


def test_addresses_stay():
    table = SlotMapping(2, 2, 2, 4)
    before = table.table.data_ptr(), table.buffer.data_ptr(), table.batch_table.data_ptr()
    table.add(0, [1, 2])
    table.commit()
    table.slots([0], [0, 2], [0, 1])
    table.gather([0], 2)
    assert before == (table.table.data_ptr(), table.buffer.data_ptr(), table.batch_table.data_ptr())
    assert table.buffer.dtype == torch.int64
