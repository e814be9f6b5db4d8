"""Our own kv_manager in rows of slots."""

from __future__ import annotations

from functools import partial

import pytest
from computing import compute
from driving import holds, walk
from manager_goals import WITH_EVENTS, missed
from slow import slow

from kvlockstep.impl.kv_manager.slots import SlotManager
from kvlockstep.impl.slot_prefix_cache import SlotPrefixCache
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.reference.kv_manager.contract import KVManagerTarget

ROW_ONLY = {"full_prompt_hit", "refused_reserve", "decode_at_block_start", "long_request"}


class KeepsLongerEntries(SlotManager):
    """A row reused in place for a shorter prefix keeps its longer entries."""

    def _leave_idle(self, row: int, kept: int) -> None:
        if kept:
            self._idle.pop(row)
        else:
            super()._leave_idle(row, kept)


class KeepsEntriesOfRowsTakenAnew(SlotManager):
    """A row that is allocated again keeps its entries, and nobody looks at versions."""

    def _leave_idle(self, row: int, kept: int) -> None:
        self._idle.pop(row)

    def reset(self) -> None:
        super().reset()
        self._pool.version = lambda slot: 1  # type: ignore[method-assign]


class CopiesNothing(SlotManager):
    def copies(self) -> list[tuple[int, int]]:
        return []


class CachesAtReserve(SlotManager):
    """What is scheduled counts as computed."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        request.computed += n
        self._insert(request)
        request.computed -= n
        return super().reserve(rid, n)


class OneLead(SlotManager):
    """Extra keys are ignored."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        return super().admit(rid, tokens, None, n)


class WithdrawKeepsCopy(SlotManager):
    """A withdrawn admission counts as cached what its copy would have brought."""

    def withdraw(self, rid: str) -> None:
        if self._live[rid].admitted:
            self.finish(rid)


class StaleCache(SlotPrefixCache):
    """Keeps the entries of a row that is allocated again: only the version tells that they are stale."""

    def __init__(self, capacity: int, slots: int, positions: int) -> None:
        super().__init__(capacity, slots, positions, layers=0)

    def reuse(self, slot: int, length: int) -> None:
        if length:
            super().reuse(slot, length)


class TestSlotManager:
    @pytest.mark.parametrize("capacity", [None, 5, *slow(30)])
    def test_holds_and_reaches_what_rows_can(self, capacity: int | None) -> None:
        reach = holds(KVManagerModel, partial(SlotManager, capacity=capacity), 7_000)
        assert missed(reach) <= ROW_ONLY | WITH_EVENTS

    def test_holds_on_tensors(self) -> None:
        assert holds(KVManagerModel, partial(SlotManager, tensors=True), 2_000)["copies"]

    def test_versions_keep_stale_entries_from_being_hit(self) -> None:
        manager = SlotManager(2, 1, cache=StaleCache)
        compute(manager, "a", [1, 2, 3])
        manager.finish("a")
        manager.admit("b", [7, 7], None, 2)
        assert manager.slots("b")[0] == 0
        assert manager.admit("c", [1, 2, 3], None, 3) == 0

    @pytest.mark.parametrize(
        "fault",
        [KeepsLongerEntries, KeepsEntriesOfRowsTakenAnew, CopiesNothing, CachesAtReserve, OneLead, WithdrawKeepsCopy],
    )
    def test_faults_are_caught(self, fault: type[SlotManager]) -> None:
        assert walk(KVManagerModel, fault, 40_000).failure is not None

    def test_is_a_target_with_rows_as_blocks(self) -> None:
        manager = SlotManager(3, 2)
        assert isinstance(manager, KVManagerTarget)
        assert (manager.block_size, manager.max_length, manager.total) == (8, 8, 24)

    def test_a_free_row_is_reused_in_place(self) -> None:
        manager = SlotManager(2, 1)
        compute(manager, "a", [1, 2, 3])
        row = manager.slots("a")
        manager.finish("a")
        assert manager.admit("b", [1, 2, 9], None, 1) == 2
        assert manager.slots("b") == row
        assert manager.copies() == []

    def test_a_held_row_is_copied(self) -> None:
        manager = SlotManager(2, 1)
        compute(manager, "a", [1, 2, 3])
        assert manager.admit("b", [1, 2, 9], None, 1) == 2
        assert manager.copies() == [(0, 4), (1, 5)]
        manager.launch()
        assert manager.copies() == []

    def test_after_reuse_for_a_shorter_prefix_the_longer_one_is_gone(self) -> None:
        manager = SlotManager(2, 1)
        compute(manager, "a", [1, 2, 3, 4])
        manager.finish("a")
        manager.admit("b", [1, 9], None, 1)
        assert manager.admit("c", [1, 2, 3, 4], None, 1) == 1

    def test_a_withdrawn_admission_leaves_its_row_as_it_was(self) -> None:
        manager = SlotManager(3, 1)
        compute(manager, "a", [1, 2, 3])
        manager.admit("b", [1, 2, 9], None, 1)
        manager.withdraw("b")
        assert manager.copies() == []
        assert (manager.avail(), manager.free_now()) == (8, 8)
        manager.finish("a")
        manager.admit("c", [1, 2, 3], None, 1)
        manager.withdraw("c")
        assert manager.free_now() == 8
        assert manager.admit("d", [1, 2, 3], None, 1) == 2

    def test_a_prompt_is_cached_while_it_is_computed(self) -> None:
        manager = SlotManager(2, 1)
        manager.admit("a", [1, 2, 3], None, 2)
        assert manager.admit("b", [1, 2, 3], None, 1) == 0
        manager.withdraw("b")
        manager.launch()
        manager.commit("a", 2)
        assert manager.admit("c", [1, 2, 3], None, 1) == 2
