"""The judge's memory with one stamp per block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from kvlockstep.impl.kv_manager.blocks import BlockManager
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.kv_manager.judge import ManagerJudge
from kvlockstep.models.requests.block_memory import BlockMemory
from kvlockstep.models.requests.request import Request
from kvlockstep.reference.kv_manager.traits import Traits


class TestBlockMemory:
    """Blocks of 4 slots; a table names the first slot of each block."""

    @pytest.fixture
    def memory(self) -> BlockMemory:
        return BlockMemory(None, Traits(4, 40), Counter())

    def wrong(self, memory: BlockMemory, request: Request, table: Sequence[int], stop: int) -> int | None:
        cell = memory.first_wrong(request, table, stop)
        return None if cell is None else cell.position

    def test_reads_what_was_written(self, memory: BlockMemory) -> None:
        request = Request("a", [1, 2, 3, 4, 5, 6], None)
        assert self.wrong(memory, request, [0, 8], 1) == 0
        memory.write(request, [0, 8], 0, 3)
        assert self.wrong(memory, request, [0, 8], 3) is None
        assert self.wrong(memory, request, [0, 8], 4) == 3
        memory.write(request, [0, 8], 3, 6)
        assert [self.wrong(memory, request, [0, 8], n) for n in range(7)] == [None] * 7
        assert self.wrong(memory, request, [8, 0], 6) == 0

    @pytest.mark.parametrize(
        ("tokens", "key", "position"),
        [
            ([1, 2, 3, 4, 5, 6], None, None),
            ([1, 2, 9, 4, 5, 6], None, 2),
            ([1, 2, 3, 4, 5, 6], 7, 0),
            ([9, 2, 3, 4, 5, 6], None, 0),
        ],
    )
    def test_a_stamp_depends_on_the_whole_history_and_the_key(
        self, memory: BlockMemory, tokens: list[int], key: int | None, position: int | None
    ) -> None:
        memory.write(Request("a", [1, 2, 3, 4, 5, 6], None), [0, 8], 0, 6)
        assert self.wrong(memory, Request("b", tokens, key), [0, 8], 6) == position
        other = Request("c", tokens, key)
        memory.write(other, [16], 0, 4)
        assert self.wrong(memory, other, [16, 8], 6) == (None if position is None else 4)

    def test_part_of_a_full_block_can_be_read(self, memory: BlockMemory) -> None:
        memory.write(Request("a", [1, 2, 3, 4], None), [0], 0, 4)
        assert self.wrong(memory, Request("b", [1, 2, 9, 9], None), [0], 2) is None
        assert self.wrong(memory, Request("b", [1, 2, 9, 9], None), [0], 3) == 2

    def test_two_writers_of_different_content_conflict(self, memory: BlockMemory) -> None:
        memory.begin_forward()
        assert memory.write(Request("a", [1, 2, 3], None), [0], 0, 3) is None
        assert memory.write(Request("b", [1, 2, 3, 4], None), [0], 1, 4) is None
        assert memory.write(Request("c", [1, 9], None), [0], 0, 2) == (1, "a")
        memory.begin_forward()
        assert memory.write(Request("c", [1, 9], None), [0], 0, 2) is None

    def test_a_write_behind_foreign_content_is_wrong_for_the_writer_only(self, memory: BlockMemory) -> None:
        reader, writer = Request("a", [1, 2], None), Request("b", [9, 9, 9], None)
        memory.write(reader, [0], 0, 2)
        memory.write(writer, [0], 2, 3)
        assert self.wrong(memory, reader, [0], 2) is None
        assert self.wrong(memory, writer, [0], 3) == 0

    def test_an_overwritten_reader_is_told_who_wrote(self, memory: BlockMemory) -> None:
        reader = Request("a", [1, 2, 3], None)
        memory.write(reader, [0], 0, 3)
        memory.begin_forward()
        memory.write(Request("b", [1, 2, 8], None), [0], 2, 3)
        cell = memory.first_wrong(reader, [0], 3)
        assert cell is not None
        assert (cell.position, cell.writer, cell.own) == (2, "b", False)

    def test_rejected_drafts_are_overwritten(self, memory: BlockMemory) -> None:
        request = Request("a", [1, 2, 3], None, computed=2, drafts=[7, 8, 9])
        memory.write(request, [0, 4], 0, 6)
        assert self.wrong(memory, request, [0, 4], 6) is None
        request.drafts = []
        request.tokens += [5]
        assert self.wrong(memory, request, [0, 4], 3) is None
        assert self.wrong(memory, request, [0, 4], 4) == 3
        memory.begin_forward()
        memory.write(request, [0, 4], 3, 4)
        assert self.wrong(memory, request, [0, 4], 4) is None

    def test_copies(self, memory: BlockMemory) -> None:
        request = Request("a", [1, 2, 3, 4], None)
        memory.write(request, [0], 0, 4)
        memory.copy([(i, 4 + i) for i in range(4)])
        assert self.wrong(memory, request, [4], 4) is None
        memory.copy([(i, 8 + i) for i in (0, 1, 3)])
        assert self.wrong(memory, request, [8], 4) == 2
        memory.copy([(i, 4 + i) for i in (1, 2)])
        assert self.wrong(memory, request, [4], 4) == 1

    def test_copies_read_all_sources_first(self, memory: BlockMemory) -> None:
        a, b = Request("a", [1], None), Request("b", [2], None)
        memory.write(a, [0], 0, 1)
        memory.write(b, [4], 0, 1)
        memory.copy([(0, 4), (4, 0)])
        assert self.wrong(memory, a, [4], 1) is None
        assert self.wrong(memory, b, [0], 1) is None

    def test_freed_blocks_are_poisoned_again_after_a_write(self, memory: BlockMemory) -> None:
        request, freed = Request("a", [1, 2, 3, 4], None), [0, 4]
        for _ in range(2):
            memory.write(request, [0], 0, 4)
            memory.poison(freed)
            cell = memory.first_wrong(request, [0], 4)
            assert cell is not None
            assert cell.got == "freed memory"


class HidesChange(BlockManager):
    """Moves a live request to other blocks without moving its KV."""

    moved = False

    def finish(self, rid: str) -> None:
        super().finish(rid)
        for request in self._live.values():
            self._blank.append(request.table[-1])
            request.table[-1] = self._blank.pop(0)
            self.moved = True


def test_tables_are_asked_for_afresh_when_stamps_are_per_block() -> None:
    manager = HidesChange(6, 2)
    judge = ManagerJudge(manager, BlockMemory)
    judge.admit("a", [1, 2, 3], None, 3)
    judge.admit("b", [4, 5, 6], None, 3)
    judge.forward(None, [], None)
    judge.decode("a", 7, [])
    judge.forward(None, [], None)
    with pytest.raises(Divergence, match="content_equality"):
        judge.finish("b")
    assert manager.moved
    assert judge.subject == "a"
