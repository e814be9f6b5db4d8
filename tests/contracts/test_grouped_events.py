"""Our manager with groups: its events, what a withdrawal gives back, and that what is wrong with either is found."""

from __future__ import annotations

from typing import Any

import pytest
from driving import walk

from kvlockstep.impl.kv_manager.grouped.announcer import Announcer
from kvlockstep.impl.kv_manager.grouped.manager import AnnouncingBlockManager
from kvlockstep.impl.kv_manager.grouped.prefixes import Prefix
from kvlockstep.impl.kv_scheduler.grouped import BlockStates
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.reference.kv_manager.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvlockstep.reference.kv_manager.groups.contract import Group

FULL, WINDOW, STATE = Group("full", 2), Group("window", 2, reach=3), Group("state", 4)


def make(blocks: int, block_size: int) -> AnnouncingBlockManager:
    groups = Group("full", block_size), Group("window", block_size, reach=3), Group("state", 2 * block_size)
    return AnnouncingBlockManager(groups, {"kv": 3 * blocks})


def played(manager: Any, name: str, tokens: list[int]) -> None:
    cached = manager.admit(name, tokens, None, len(tokens))
    manager.launch()
    manager.commit(name, len(tokens) - cached)


def test_each_group_announces_its_blocks_under_one_key_for_a_prefix() -> None:
    manager = AnnouncingBlockManager((FULL, WINDOW, STATE), {"kv": 9})
    played(manager, "a", [1, 2, 3, 4])
    cleared, *stored = manager.events()
    assert cleared == AllBlocksCleared()
    assert [(e.group, e.tokens, e.block_size) for e in stored] == [
        (0, (1, 2), 2),
        (1, (1, 2), 2),
        (0, (3, 4), 2),
        (1, (3, 4), 2),
        (2, (1, 2, 3, 4), 4),
    ]
    first, last = stored[0].keys, stored[2].keys
    assert [e.keys for e in stored] == [first, first, last, last, last]
    assert [e.parent for e in stored] == [None, None, *first, *first, None]
    manager.finish("a")
    manager.evict_all()
    removed = manager.events()
    assert {(e.keys, e.group) for e in removed} == {(e.keys, e.group) for e in stored}
    assert all(isinstance(event, BlockRemoved) for event in removed)


def test_a_prefix_is_forgotten_with_its_last_block_and_comes_back_under_another_key() -> None:
    manager = AnnouncingBlockManager((FULL, WINDOW), {"kv": 8})
    keys = []
    for name in ("a", "b"):
        played(manager, name, [1, 2, 3])
        keys += [event.keys for event in manager.events() if isinstance(event, BlockStored) and event.group == 0]
        manager.finish(name)
        manager.evict_all()
        assert not manager._index._known
        assert not manager._index._roots
    assert len(set(keys)) == 2


def test_a_withdrawal_gives_back_what_the_step_took() -> None:
    manager = make(4, 2)
    played(manager, "a", [1, 2, 3])
    copied = manager.fork("a", "b")
    assert copied is not None
    assert len(copied) == 1
    before = manager.avail(), [manager.slots("b", g) for g in (0, 1)], manager.held("b", 2)
    manager.append("b", 7)
    assert manager.reserve("b", 1)
    assert len(manager.copies()) == 2
    manager.withdraw("b")
    assert (manager.avail(), [manager.slots("b", g) for g in (0, 1)], manager.held("b", 2)) == before
    assert manager.copies() == []
    assert manager.admit("c", [9, 9, 9], None, 3) == 0
    manager.withdraw("c")
    assert manager.avail() == before[0]


class NoRemovalOfWindows(Announcer):
    """Says nothing of the blocks of windows that are evicted."""

    def removed(self, prefix: Prefix, g: int) -> None:
        if self._groups[g].kind != "window":
            super().removed(prefix, g)


class NoState(Announcer):
    """Says nothing of the states that are published."""

    def stored(self, prefix: Prefix, g: int) -> None:
        if self._groups[g].kind != "state":
            super().stored(prefix, g)


@pytest.mark.parametrize("wrong", [NoRemovalOfWindows, NoState])
def test_events_that_leave_out_one_group_are_found(wrong: type[Announcer], monkeypatch: pytest.MonkeyPatch) -> None:
    scheduled = walk(KVSchedulerModel, BlockStates, 2_000)
    managed = walk(KVManagerModel, make, 2_000)
    assert scheduled.failure is None
    assert managed.failure is None
    monkeypatch.setattr("kvlockstep.impl.kv_manager.grouped.manager.Announcer", wrong)
    for model, factory in ((KVManagerModel, make), (KVSchedulerModel, BlockStates)):
        failure = walk(model, factory, 6_000).failure
        assert failure is not None
        assert failure.law == "event_consistency"


class KeepsWithdrawnStates(AnnouncingBlockManager):
    """Forgets the blocks that a withdrawn step was to save states to."""

    def withdraw(self, rid: str) -> None:
        if self._live[rid].kept is not None:
            self._live[rid].saves = [{} for _ in self.groups]
        super().withdraw(rid)


def test_a_withdrawal_that_keeps_a_block_is_found() -> None:
    def broken(blocks: int, block_size: int) -> AnnouncingBlockManager:
        return KeepsWithdrawnStates(make(blocks, block_size).groups, {"kv": 3 * blocks})

    failure = walk(KVManagerModel, broken, 6_000, seed=0).failure
    assert failure is not None
    assert failure.law in ("accounting", "leak_freedom")
    assert any(op.name == "withdraw" for op in failure.ops)
