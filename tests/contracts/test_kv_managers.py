"""Managers that declare nothing, and our own in blocks, with one stamp per slot and per block."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import pytest
from computing import compute
from driving import explore, holds, walk
from manager_goals import WITH_EVENTS, missed
from watched import watched

from kvlockstep.impl.faulty import FAULTS, faults_of
from kvlockstep.impl.kv_manager.blocks import BlockManager, CachedBlock
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.requests.block_memory import BlockMemory
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_manager.contract import KVManagerTarget
from kvlockstep.reference.kv_manager.traits import Traits


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
        reached = holds(KVManagerModel, Bare, 6_000)
        goals = {goal.id: goal.when for goal in KVManagerModel.goals}
        assert {id_ for id_, when in goals.items() if when is None} <= reached.keys()
        assert not [id_ for id_ in reached if goals.get(id_) in CONTRACTS["kv_manager"].announced.values()]

    def test_nothing_is_taken_for_granted_but_a_prefix_cache(self) -> None:
        assert {field.name for field in fields(Traits) if field.default is True} == {"prefix_cache"}
        assert (Traits(4, 8).chunk_align, Traits(4, 8).output_reserve) == (1, 0)


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


class TestBlockManager:
    @pytest.mark.parametrize(
        "hash_function",
        [None, lambda parent, tokens: 0, lambda parent, tokens: (parent + tokens[0]) & 1],
        ids=["strong", "constant", "one bit"],
    )
    def test_holds_and_reaches_everything(self, hash_function: Any) -> None:
        make = BlockManager if hash_function is None else partial(BlockManager, hash_function=hash_function)
        reach = holds(KVManagerModel, make, 6_000)
        assert missed(reach) == set()

    def test_holds_on_tensors(self) -> None:
        assert holds(KVManagerModel, partial(BlockManager, tensors=True), 2_000)["copies"]

    @pytest.mark.usefixtures("stamps_per_block")
    def test_holds_with_stamps_per_block(self) -> None:
        reach = holds(KVManagerModel, BlockManager, 6_000)
        assert missed(reach) == WITH_EVENTS, "nobody listens"

    def test_one_physical_copy_is_not_demanded(self) -> None:
        holds(KVManagerModel, ExchangesNothing, 6_000)

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


@pytest.mark.usefixtures("stamps_per_block")
@pytest.mark.parametrize(
    "fault", [f.id for f in faults_of("kv_manager") if f.make.__module__.endswith(".keys") and "key" in f.id]
)
def test_stamps_per_block_find_wrong_keys(fault: str) -> None:
    class Tables(FAULTS[fault].make(4, 2).__class__):  # type: ignore[misc]
        def blocks(self, rid: str) -> list[int]:
            return list(self._live[rid].table)

    assert walk(KVManagerModel, Tables, 20_000).failure is not None


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
