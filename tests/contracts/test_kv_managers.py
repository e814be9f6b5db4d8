"""Our own kv_managers, in blocks and in rows, their KV tensors, and the judge's memory with one stamp per block."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import pytest
from driving import explore, walk
from hypothesis import given
from hypothesis import strategies as st
from slow import slow
from watched import watched

from kvlockstep.impl.faulty import FAULTS, faults_of
from kvlockstep.impl.kv_manager.blocks import BlockManager, CachedBlock
from kvlockstep.impl.kv_manager.slots import SlotManager
from kvlockstep.impl.kv_manager.tensors import POISON, TORN, KVTensors
from kvlockstep.impl.slot_prefix_cache import SlotPrefixCache
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.judge import ManagerJudge
from kvlockstep.models.requests.block_memory import BlockMemory
from kvlockstep.models.requests.request import Request
from kvlockstep.models.requests.transfers.goals import FAILED, MOVED, RESET, STORED
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.reference.kv.memory import UNWRITTEN, KVMemory, Provenance
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_manager.contract import KVManagerTarget
from kvlockstep.reference.kv_manager.traits import Traits

ROW_ONLY = {"full_prompt_hit", "refused_reserve", "decode_at_block_start", "long_request"}
WITH_EVENTS = {"announced_hit", "announced_removal"}


def holds(factory: Callable[..., Any], steps: int, seed: int = 1) -> Counter[str]:
    """Runs random episodes, all of which must hold; answers what they reached."""
    outcome = walk(KVManagerModel, factory, steps, seed=seed)
    assert outcome.failure is None, f"{outcome.failure.law}: {outcome.failure.message}"
    return outcome.reach


def compute(manager: Any, rid: str, tokens: list[int], key: int | None = None) -> int | None:
    """Admits a whole prompt and computes it."""
    cached: int | None = manager.admit(rid, tokens, key, len(tokens))
    if cached is not None:
        manager.launch()
        manager.commit(rid, len(tokens) - cached)
    return cached


@pytest.fixture
def stamps_per_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVManagerModel, "memory_type", BlockMemory)


class Bare:
    """A manager that has what every manager has, and declares nothing of itself."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self._manager = KVManager(blocks, block_size)
        self.block_size, self.total = block_size, self._manager.total

    def __getattr__(self, name: str) -> Any:
        if name not in vars(KVManagerTarget) or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._manager, name)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = self._manager.admit(rid, tokens, extra_key, n)
        assert extra_key is None
        assert cached is None or cached + n >= len(tokens)
        return cached


class TestTraits:
    def test_what_a_manager_does_not_declare_is_not_asked_of_it(self) -> None:
        reached = holds(Bare, 6_000)
        goals = {goal.id: goal.when for goal in KVManagerModel.goals}
        assert {id_ for id_, when in goals.items() if when is None} <= reached.keys()
        assert not [id_ for id_ in reached if goals.get(id_) in CONTRACTS["kv_manager"].announced.values()]

    def test_nothing_is_taken_for_granted_but_a_prefix_cache(self) -> None:
        assert {field.name for field in fields(Traits) if field.default is True} == {"prefix_cache"}
        assert (Traits(4, 8).chunk_align, Traits(4, 8).output_reserve) == (1, 0)


class TestProvenance:
    @given(st.lists(st.tuples(st.none() | st.integers(0, 1), st.lists(st.integers(0, 2), min_size=1)), max_size=9))
    def test_a_stamp_stands_for_its_history_and_no_other(self, histories: list[tuple[int | None, list[int]]]) -> None:
        provenance = Provenance()
        stamps = [provenance.extend(UNWRITTEN, key, tokens)[-1] for key, tokens in histories]
        assert [provenance.history(stamp) for stamp in stamps] == [(key, tuple(tokens)) for key, tokens in histories]
        assert not {UNWRITTEN, POISON}.intersection(stamps)


class TestKVTensors:
    def test_agrees_with_plain_memory(self) -> None:
        tensors, plain, rng = KVTensors(12), KVMemory(), random.Random(1)
        for _ in range(400):
            written = {slot: rng.randrange(1, 2**40) for slot in rng.sample(range(12), rng.randrange(4))}
            pairs = list(zip(rng.sample(range(12), 3), rng.sample(range(12), 3), strict=True))
            freed = rng.sample(range(12), rng.randrange(2))
            for memory in (tensors, plain):
                memory.write(list(written), list(written.values()))
                memory.copy(pairs)
                memory.poison(freed)
            assert tensors.read(range(12)) == plain.read(range(12))

    def test_fresh_memory_reads_as_nothing_and_freed_as_poison(self) -> None:
        tensors = KVTensors(3, layers=3)
        tensors.poison([1])
        assert tensors.read([0, 1, 2]) == [0, POISON, 0]

    @pytest.mark.parametrize("kv", [0, 1])
    @pytest.mark.parametrize("layer", [0, 1, 2])
    def test_one_plane_left_out_shows(self, layer: int, kv: int) -> None:
        tensors = KVTensors(2, layers=3)
        tensors.write([0, 1], [7, 8])
        tensors.kv[1, layer, kv] = tensors.kv[0, layer, kv]
        assert tensors.read([0, 1]) == [7, TORN]

    def test_one_plane_taken_for_another_shows(self) -> None:
        tensors = KVTensors(1, layers=2)
        tensors.write([0], [7])
        tensors.kv[0] = tensors.kv[0].flip(0)
        assert tensors.read([0]) == [TORN]
        tensors.write([0], [7])
        tensors.kv[0] = tensors.kv[0].flip(1)
        assert tensors.read([0]) == [TORN]

    def test_nothing_is_not_an_error(self) -> None:
        tensors = KVTensors(1)
        tensors.write([], [])
        tensors.copy([])
        tensors.poison([])
        assert tensors.read([]) == []


class Unverified(BlockManager):
    """Takes a block for a hit when its hash is equal."""

    def _find(self, key: int, parent: CachedBlock | int | None, tokens: bytes) -> CachedBlock | None:
        return next(iter(self._buckets.get(key, ())), None)


class VerifiesTokensOnly(BlockManager):
    def _find(self, key: int, parent: CachedBlock | int | None, tokens: bytes) -> CachedBlock | None:
        return next((c for c in self._buckets.get(key, ()) if c.tokens == tokens), None)


class TakesBeforeHolding(BlockManager):
    """Allocates before the hit is pinned."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        hold, self._hold = self._hold, lambda block: None  # type: ignore[method-assign]
        try:
            cached = super().admit(rid, tokens, extra_key, n)
        finally:
            self._hold = hold  # type: ignore[method-assign]
        for block in self._live[rid].table[: (cached or 0) // self.block_size] if cached is not None else ():
            if block in self._idle or self._holders[block]:
                hold(block)
        return cached


class ExchangesNothing(BlockManager):
    """Leaves a block that is published already in the table, but takes the published one into the chain: harmless.

    But children outlive their parents, and are not found again behind a new one, which no event says.
    """

    event_listener = None

    def _publish(self, request: Any) -> None:
        table = request.table.copy()
        super()._publish(request)
        index = len(request.chain) - 1
        if request.table[index] != table[index]:
            other, request.table[index] = request.table[index], table[index]
            self._blank.remove(table[index])
            self._holders[table[index]] = 1
            self._release((other,))


class WritesShared(BlockManager):
    """A shared block is written in place."""

    def reserve(self, rid: str, n: int) -> bool:
        holders, self._holders = self._holders, [min(h, 1) for h in self._holders]
        accepted = super().reserve(rid, n)
        for block in self._live[rid].table:
            holders[block] = max(holders[block], self._holders[block])
        self._holders = holders
        return accepted


class DropsCopiesSourceEarly(BlockManager):
    """Releases the source of a copy at once and hands it out again in the same step."""

    def reserve(self, rid: str, n: int) -> bool:
        accepted = super().reserve(rid, n)
        self.launch()
        return accepted


BLOCK_FAULTS: dict[str, Callable[..., Any]] = {
    "unverified": partial(Unverified, hash_function=lambda parent, tokens: 0),
    "tokens only": partial(VerifiesTokensOnly, hash_function=lambda parent, tokens: 0),
    "not pinned": TakesBeforeHolding,
    "no copy on write": WritesShared,
    "copy lost": DropsCopiesSourceEarly,
}


def missed(reach: Any) -> set[str]:
    """The goals of a manager without groups that a run did not meet."""
    of_tiers = {goal.when for goal in (*STORED, *FAILED, *MOVED, *RESET)}
    apart = {"groups", "groups_and_tiers", "events_of_tiers", "waits_for_moves", "loses", *of_tiers}
    return {goal.id for goal in KVManagerModel.goals if not reach[goal.id] and goal.when not in apart}


class TestBlockManager:
    @pytest.mark.parametrize(
        "hash_function",
        [None, lambda parent, tokens: 0, lambda parent, tokens: (parent + tokens[0]) & 1],
        ids=["strong", "constant", "one bit"],
    )
    def test_holds_and_reaches_everything(self, hash_function: Any) -> None:
        make = BlockManager if hash_function is None else partial(BlockManager, hash_function=hash_function)
        reach = holds(make, 6_000)
        assert missed(reach) == set()

    def test_holds_on_tensors(self) -> None:
        assert holds(partial(BlockManager, tensors=True), 2_000)["copies"]

    @pytest.mark.usefixtures("stamps_per_block")
    def test_holds_with_stamps_per_block(self) -> None:
        reach = holds(BlockManager, 6_000)
        assert missed(reach) == WITH_EVENTS, "nobody listens"

    def test_one_physical_copy_is_not_demanded(self) -> None:
        holds(ExchangesNothing, 6_000)

    @pytest.mark.parametrize("fault", BLOCK_FAULTS)
    def test_faults_are_caught(self, fault: str) -> None:
        assert walk(KVManagerModel, BLOCK_FAULTS[fault], 20_000).failure is not None

    @pytest.mark.usefixtures("stamps_per_block")
    @pytest.mark.parametrize("fault", BLOCK_FAULTS)
    def test_faults_are_caught_with_stamps_per_block(self, fault: str) -> None:
        assert walk(KVManagerModel, BLOCK_FAULTS[fault], 20_000).failure is not None

    def test_is_a_target(self) -> None:
        assert isinstance(BlockManager(2, 2), KVManagerTarget)

    def test_the_last_block_of_a_sequence_is_evicted_first(self) -> None:
        manager = BlockManager(4, 2)
        compute(manager, "a", [1, 2, 3, 4, 5, 6, 7, 8])
        manager.finish("a")
        compute(manager, "b", [9, 9])
        manager.finish("b")
        assert manager.evictions == 1
        assert manager.admit("c", [1, 2, 3, 4, 5, 6, 7, 8], None, 1) == 6

    def test_the_sequence_released_first_is_evicted_first(self) -> None:
        manager = BlockManager(3, 1)
        for rid, token in (("a", 1), ("b", 2), ("c", 3)):
            compute(manager, rid, [token])
        for rid in ("b", "a", "c"):
            manager.finish(rid)
        manager.admit("x", [7], None, 1)
        assert [manager.admit(f"y{t}", [t, 9], None, 1) for t in (1, 3)] == [1, None]
        assert manager.free_now() == 0

    def test_equal_prompts_in_one_step_end_in_the_same_blocks(self) -> None:
        manager = BlockManager(4, 2)
        for rid in ("a", "b"):
            manager.admit(rid, [1, 2, 3, 4], None, 4)
        assert not set(manager.blocks("a")) & set(manager.blocks("b"))
        manager.launch()
        for rid in ("b", "a"):
            manager.commit(rid, 4)
        assert manager.blocks("a") == manager.blocks("b")
        assert manager.avail() == 4

    def test_a_published_block_never_outlives_its_parent(self) -> None:
        rng, manager = random.Random(3), BlockManager(8, 1)
        live: list[str] = []
        for number in range(3000):
            if live and rng.random() < 0.5:
                manager.finish(live.pop(rng.randrange(len(live))))
            elif compute(manager, f"r{number}", [rng.randrange(2) for _ in range(rng.randrange(1, 7))]) is not None:
                live.append(f"r{number}")
            published = [cached for cached in manager._published if cached is not None]
            assert all(c.parent in published for c in published if isinstance(c.parent, CachedBlock))
        assert manager.evictions > 100

    def test_hits_do_not_cross_extra_keys(self) -> None:
        manager = BlockManager(8, 1)
        compute(manager, "a", [1, 2], key=5)
        assert compute(manager, "b", [1, 2]) == 0
        assert compute(manager, "c", [1, 2], key=5) == 1

    def test_free_blocks_are_the_blocks_of_free_slots(self) -> None:
        manager = BlockManager(5, 3)
        compute(manager, "a", [1, 2, 3, 4])
        assert sorted(manager.free_blocks()) == sorted({slot // 3 for slot in manager.free_slots() or ()})
        assert manager.free_now() == 9


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
        reach = holds(partial(SlotManager, capacity=capacity), 7_000)
        assert missed(reach) <= ROW_ONLY | WITH_EVENTS

    def test_holds_on_tensors(self) -> None:
        assert holds(partial(SlotManager, tensors=True), 2_000)["copies"]

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


@pytest.mark.usefixtures("stamps_per_block")
@pytest.mark.parametrize(
    "fault", [f.id for f in faults_of("kv_manager") if f.make.__module__.endswith(".keys") and "key" in f.id]
)
def test_stamps_per_block_find_wrong_keys(fault: str) -> None:
    class Tables(FAULTS[fault].make(4, 2).__class__):  # type: ignore[misc]
        def blocks(self, rid: str) -> list[int]:
            return list(self._live[rid].table)

    assert walk(KVManagerModel, Tables, 20_000).failure is not None


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


class MovesAtLaunch(BlockManager):
    """Knows where its requests lie once the step is launched, or one of them was refused."""

    moving = False

    def admit(self, rid: str, tokens: Sequence[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        self.moving = cached is not None
        return cached

    def reserve(self, rid: str, n: int) -> bool:
        self.moving = super().reserve(rid, n)
        return self.moving

    def launch(self) -> None:
        super().launch()
        self.moving = False

    def withdraw(self, rid: str) -> None:
        super().withdraw(rid)
        self.moving = False

    def slots(self, rid: str) -> list[int]:
        if self.moving:
            raise RuntimeError("not known yet")
        return super().slots(rid)


def test_a_state_whose_slots_are_not_known_yet_is_explored_and_not_judged() -> None:
    outcome = watched(explore, KVManagerModel, MovesAtLaunch, KVManagerModel.small_scopes[0], max_depth=5)
    assert outcome.failure is None
    assert outcome.reach["hit"] > 0
