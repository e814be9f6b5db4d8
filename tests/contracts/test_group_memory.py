"""KV of groups in a target's own memory: blocks of one store, whose rows are slots of attention or parts of a state."""

from __future__ import annotations

from functools import partial

import pytest
from driving import walk
from slow import slow

from kvlockstep.drivers.episode import missed_goals
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.reference.kv.memory import KVMemory
from kvlockstep.reference.kv_manager.groups.geometries import FullAndState

pytest.importorskip("torch")

from kvlockstep.impl.kv_manager.grouped.geometries import make_tensors
from kvlockstep.impl.kv_store.oracle_memory import StoreMemory

LAYOUTS = pytest.mark.parametrize("layout", ["layer_major", *slow("slot_major")])


def walked(make):
    return walk(KVManagerModel, make, 2_000, seed=0)


@LAYOUTS
def test_windows_and_states_hold_on_tensors_and_reach_everything(device, layout):
    outcome = walked(partial(make_tensors, device=device, layout=layout))
    assert outcome.failure is None, outcome.failure
    assert not missed_goals(KVManagerModel, outcome.reach, outcome.unreachable)
    assert outcome.reach["copies"]


class CopiesNothing(StoreMemory):
    def copy(self, pairs):
        pass


class CopiesFirstRows(StoreMemory):
    """Copies as many rows as a block of tokens has: half of a state."""

    def copy(self, pairs):
        rows = self.store.block_size
        kept = [target for _, target in pairs if target % rows >= rows // 2]
        stamps = self.read(kept)
        super().copy(pairs)
        self.write(kept, stamps)


class RotatesRows(StoreMemory):
    """Copies each row of a block one further."""

    def copy(self, pairs):
        rows = self.store.block_size
        stamps = self.read([source for source, _ in pairs])
        self.write([target // rows * rows + (target + 1) % rows for _, target in pairs], stamps)


@pytest.mark.parametrize("broken", [CopiesNothing, CopiesFirstRows, RotatesRows])
def test_a_copy_that_loses_something_is_found(device, broken):
    def make(blocks, block_size):
        manager = make_tensors(blocks, block_size, device)
        (store,) = manager.memory.values()
        manager.memory = {"kv": broken(2 * blocks + 2, store.store.block_size, device=device)}
        return manager

    failure = walked(make).failure
    assert failure is not None
    assert failure.law in ("state_soundness", "content_equality", "prefix_soundness")


def test_a_state_in_parts_is_named():
    class Halves(KVMemory):
        def copy(self, pairs):
            super().copy(pairs[: len(pairs) // 2])

    def make(blocks, block_size):
        manager = FullAndState(blocks, block_size)
        manager.memory = {"kv": Halves()}
        return manager

    failure = walked(make).failure
    assert failure is not None
    assert "parts of different KV" in failure.message


@pytest.mark.parametrize("memory", [KVMemory(), {}, {"kv": KVMemory(), "other": KVMemory()}])
def test_memory_is_given_by_pool(memory):
    def make(blocks, block_size):
        manager = FullAndState(blocks, block_size)
        manager.memory = memory
        return manager

    with pytest.raises(Divergence, match="a dict with one memory for each pool: 'kv'"):
        KVManagerModel(KVScope(2, 1, 1, 2), make)
