"""KV memory for long requests: it finds what the plain one finds, and reads what may have changed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from driving import walk

from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.requests import long_memory as kv_slots
from kvlockstep.models.requests.known_table import KnownTable
from kvlockstep.models.requests.long_memory import LongSlotMemory
from kvlockstep.models.requests.request import Request
from kvlockstep.models.requests.slot_memory import SlotMemory
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_manager.traits import Traits
from kvlockstep.targets.registry import faults

CONTENT_LAWS = ("prefix_soundness", "write_isolation", "content_equality")
WRONG_CONTENT = [f for f in faults().values() if f.contract == "kv_manager" and f.law in CONTENT_LAWS]


def found(make: Any, steps: int) -> Any:
    outcome = walk(KVManagerModel, make, steps)
    failure = outcome.failure
    return outcome.steps, outcome.reach, failure and (failure.law, failure.ops)


@pytest.mark.parametrize("fault", WRONG_CONTENT[::4], ids=lambda fault: str(fault.id))
def test_it_finds_what_is_found_by_reading_all(monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    plain = found(fault.make, 3_000)
    monkeypatch.setattr(KVManagerModel, "memory_type", LongSlotMemory)
    assert found(fault.make, 3_000) == plain


def test_a_right_manager_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = found(KVManager, 5_000)
    monkeypatch.setattr(KVManagerModel, "memory_type", LongSlotMemory)
    assert found(KVManager, 5_000) == plain
    assert plain[-1] is None


class Rows:
    """A request of six tokens, computed in slots 0 to 5."""

    def __init__(self, memory: type[SlotMemory]) -> None:
        self.memory = memory(object(), Traits(2, 64), Counter())
        self.request = Request("r", [1, 2, 3, 4, 5, 6], None, computed=6)
        self.table = list(range(6))
        self.memory.write(self.request, self.table, 0, 6)
        assert self.wrong() is None

    def wrong(self, table: list[int] | None = None) -> int | None:
        cell = self.memory.first_wrong(self.request, table or self.table, 6)
        return cell and cell.position


@pytest.mark.parametrize("memory", [SlotMemory, LongSlotMemory])
class TestReading:
    def test_what_another_request_writes(self, memory: type[SlotMemory]) -> None:
        rows = Rows(memory)
        rows.memory.begin_forward()
        rows.memory.write(Request("s", [9], None), [4], 0, 1)
        assert rows.wrong() == 4

    def test_what_a_copy_writes(self, memory: type[SlotMemory]) -> None:
        rows = Rows(memory)
        rows.memory.copy([(0, 3)])
        assert rows.wrong() == 3

    def test_what_is_poisoned(self, memory: type[SlotMemory]) -> None:
        rows = Rows(memory)
        rows.memory.poison([7, 5, 2])
        assert rows.wrong() == 2

    def test_another_table(self, memory: type[SlotMemory]) -> None:
        rows = Rows(memory)
        assert rows.wrong([0, 1, 2, 3, 9, 5]) == 4
        assert rows.wrong() is None

    def test_the_drafts_of_the_next_time(self, memory: type[SlotMemory]) -> None:
        rows = Rows(memory)
        rows.request.computed, rows.request.drafts = 4, [8, 8]
        del rows.request.tokens[4:]
        rows.memory.begin_forward()
        rows.memory.write(rows.request, rows.table, 4, 6)
        assert rows.wrong() is None
        rows.request.drafts = [7, 7]
        assert rows.wrong() == 4


def test_of_a_request_that_is_gone_nothing_is_kept() -> None:
    rows = Rows(LongSlotMemory)
    for kept in (1, 0):
        rows.memory.end_forward()
        assert isinstance(rows.memory, LongSlotMemory)
        assert len(rows.memory._right) == kept


def test_only_what_is_new_of_a_table_is_looked_at() -> None:
    known = KnownTable(block_size=4)
    for table in ([0, 1, 2], [0, 1, 2, 3, 9], [0, 1], [8, 9, 9]):
        known.follow(table)
        assert (known.table[: len(table)], known.begins(table)) == (table, True)
        known.cut(len(table))
        assert known.slots == set(table)
        assert known.blocks == {slot // 4 for slot in table}


def test_a_pool_is_large_where_its_list_is_long() -> None:
    pools = (kv_slots.SMALL_POOL, kv_slots.SMALL_POOL + 4)
    assert [LongSlotMemory(object(), Traits(4, total), Counter()).sparing for total in pools] == [False, True]
