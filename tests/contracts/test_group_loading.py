"""kv_manager with groups and tiers: what is loaded for which group, and what the judge says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from driving import explore
from watched import watched

from kvlockstep.impl.kv_manager.fenced import FencedStates
from kvlockstep.impl.variants.group_loading import LoadsStatesApart, StoresCheckpoints, WaitsForStates
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.picture import HELD
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.groups.judge import GroupedJudge
from kvlockstep.models.kv_manager.groups.picture import picture_of_groups
from kvlockstep.models.kv_manager.scope import GROUP_SCOPES, TIER_SCOPES
from kvlockstep.models.requests.groups.memory import WHOLE
from kvlockstep.models.requests.transfers.places import OfPool
from kvlockstep.reference.kv.memory import KVMemory
from kvlockstep.reference.kv_manager.groups.geometries import (
    TieredPools,
    TieredStates,
    TieredWindow,
    TwoPools,
)
from kvlockstep.reference.kv_manager.groups.manager import GroupedManager
from kvlockstep.targets.validation import misfits

PROMPT = [1, 2, 3, 4, 5]


def judge(make: Callable[..., Any] = TieredStates, blocks: int = 6) -> GroupedJudge:
    return GroupedJudge(make(blocks, 2), "avail")


def stored(make: Callable[..., Any] = TieredStates) -> GroupedJudge:
    """A request has computed four tokens and is preempted; what it has published lies in the tier alone."""
    run = judge(make)
    run.admit("a", PROMPT, None, 4)
    run.forward(None, [], None)
    run.complete_all() if run.allows("complete_all") else None
    run.poll()
    run.preempt("a")
    run.evict_all()
    return run


def loading(make: Callable[..., Any] = TieredStates) -> GroupedJudge:
    """It comes back, and waits for what its hit needs of the tier."""
    run = stored(make)
    assert str(run.resume("a", 1)) == "loading 4"
    return run


def test_an_admission_loads_the_blocks_that_each_group_reads_behind_the_hit() -> None:
    run = loading()
    (moving,) = run.transfers.unended
    # The whole prefix, the block that a window of 3 reaches into, and the state behind 4 tokens.
    kv, states = run.groups.tables(["a"])["a"], run.groups.held(["a"])["a"][2]
    read = [kv[0][0] // 2, kv[0][2] // 2, kv[1][2] // 2]
    assert [place.unit for place in moving.targets] == [
        *(OfPool("kv", block) for block in read), *(OfPool("states", block) for block in states),
    ]  # fmt: skip
    assert kv[1][:2] == [None, None]
    run.complete(0)
    assert str(run.ready("a")) == "still loading"
    run.poll()
    assert str(run.ready("a")) == "cached 4"
    assert run.goals_met["loaded_groups"] == run.goals_met["loaded_state"] == run.goals_met["state_hit"] == 1
    assert run.goals_met["part_loaded"] == run.goals_met["loaded_for_one"] == 0
    run.chunk("a", 1)
    run.forward(None, [], None)
    assert run.live["a"].computed == 5


def test_who_comes_back_behind_its_window_by_a_load_is_counted() -> None:
    run = loading()
    assert run.goals_met["resume_behind_window"] == 0
    run.complete(0)
    run.poll()
    run.ready("a")
    assert run.goals_met["resume_behind_window"] == 1


def test_what_one_group_lacks_in_the_pool_is_loaded_alone() -> None:
    class ForgetsWindows(TieredPools):
        def evict_all(self) -> None:
            for block in list(self._pools["window"].idle):
                self._pools["window"].evict(block)

    run = judge(ForgetsWindows)
    run.admit("a", PROMPT, None, 4)
    run.forward(None, [], None)
    run.complete_all()
    run.poll()
    run.preempt("a")
    run.adapter.evict_all()
    assert str(run.resume("a", 1)) == "loading 4"
    (moving,) = run.transfers.unended
    assert {place.unit.pool for place in moving.targets} == {"window"}
    run.complete(0)
    run.poll()
    run.ready("a")
    assert run.goals_met["loaded_for_one"] == run.goals_met["part_loaded"] == 1
    assert run.goals_met["loaded_groups"] == 0


@pytest.mark.parametrize("failing", range(3))
def test_a_load_that_fails_for_one_group_leaves_no_hit_of_the_others(failing: int) -> None:
    run = loading(LoadsStatesApart)
    assert [len(moving.targets) for moving in run.transfers.unended] == [2, 1, 1]
    run.fail(failing)
    run.complete_all()
    run.poll()
    assert str(run.ready("a")) == "cached 0"
    run.chunk("a", 5)
    run.forward(None, [], None)
    assert run.live["a"].computed == 5


def test_one_that_answers_with_a_number_has_its_state_as_well() -> None:
    run = stored(WaitsForStates)
    assert str(run.resume("a", 1)) == "cached 4"
    run.forward(None, [], None)
    assert run.goals_met["loaded_state"] == 1
    assert run.live["a"].computed == 5


@pytest.mark.parametrize("make", [TieredWindow, FencedStates])
def test_a_window_slides_off_a_block_that_is_being_stored(make: Callable[..., Any]) -> None:
    run = judge(make)
    run.admit("a", [*PROMPT, 6, 7], None, 4)
    run.forward(None, [], None)
    assert run.goals_met["window_slides_in_store"] == 0
    run.chunk("a", 3)
    run.forward(None, [], None)
    assert run.goals_met["window_slides_in_store"] == 1
    assert all(run.places.read(place) == m.contents[0] for m in run.transfers.unended for place in m.sources)


def test_a_block_that_is_free_under_its_store_keeps_what_it_holds() -> None:
    run = judge(FencedStates)
    run.admit("a", PROMPT, None, 5)
    run.forward(None, [], None)
    run.finish("a")
    run.evict_all()
    free = {OfPool(pool, block) for pool in ("kv", "states") for block in run.adapter.free_slots(pool)}
    assert {place.unit for m in run.transfers.unended for place in m.sources} <= free
    run.complete_all()
    run.poll()
    assert run.avail == 15


def test_the_blocks_that_a_step_writes_are_those_of_every_group() -> None:
    run = judge()
    run.admit("a", PROMPT, None, 4)
    run.adapter.launch()
    full, window, state = (run.adapter.held("a", g) for g in range(3))
    kv = {OfPool("kv", block) for block in (*full, *window)}
    assert set(run.blocks_to_write("a")) == kv | {OfPool("states", block) for block in state}
    assert run.blocks_copied([("states", 0, 2)]) == [OfPool("states", 2)]


@pytest.mark.parametrize(
    ("landed", "said"),
    [
        (0, "load_before_read: a position 0 (slot 8 of block 4) holds what a transfer has not written yet"),
        (1, "load_before_read: a position 2 (slot 12 of block 6) holds what a transfer has not written yet"),
        (2, "load_before_read: a reads its state in block 1, which holds what a transfer has not written yet"),
    ],
)
def test_what_is_read_before_its_load_has_landed_is_named(landed: int, said: str) -> None:
    class Impatient(LoadsStatesApart):
        def ready(self, rid: str) -> int:
            return int(self._live[rid].computed)

    run = loading(Impatient)
    for _ in range(landed):
        run.complete(0)

    def goes_on() -> None:
        run.ready("a")
        run.chunk("a", 1)
        run.forward(None, [], None)

    with pytest.raises(Divergence) as found:
        goes_on()
    assert f"{found.value.law}: {found.value.message}".startswith(said)


def test_a_store_reads_the_copy_that_its_commit_has_made() -> None:
    run = judge(StoresCheckpoints)
    run.admit("a", PROMPT, None, 4)
    run.forward(None, [], None)
    states = [m.contents[0] for m in run.transfers.unended if WHOLE in m.contents[0].cells]
    assert [run.places.in_words(content) for content in states] == ["the state behind [1, 2, 3, 4] in group 1"]


def test_what_a_commit_has_waited_for_was_read_before_its_copies_were_made() -> None:
    class WritesBack(StoresCheckpoints):
        """Stores the checkpoint that a new one takes the block of, and waits for that."""

        def commit(self, rid: str, n: int) -> None:
            GroupedManager.commit(self, rid, n)

        def _publish(self, g: int, request: Any, place: int, block: int) -> None:
            pool = self._pool(g)
            if self.groups[g].kind == "state" and not pool.free and pool.idle:
                victim = next(iter(pool.idle))
                self._store(pool.key_of[victim], (self.groups[g].pool, victim))
                self._submitted[-1] = self._submitted[-1]._replace(waited=True)
                self._end_store(self._stores.popitem()[1], True)
            super()._publish(g, request, place, block)

    run = GroupedJudge(WritesBack(2, 1), "avail")
    run.admit("a", [1], None, 1)
    run.forward(None, [], None)
    run.decode("a", 2, [])
    run.forward(None, [], None)
    (stored,) = run.places.stored.values()
    assert run.places.in_words(stored) == "the state behind [1] in group 1"


def test_a_target_of_a_load_is_not_available_in_its_pool() -> None:
    class CountsTargets(TieredPools):
        def avail(self, pool: str = "") -> int:
            return super().avail(pool) + self.limbo(pool)

    run = loading(CountsTargets)
    with pytest.raises(Divergence, match=r"pool kv: .* 2 that transfers write: 2 blocks counted twice") as found:
        run.preempt("a")
    assert found.value.law == "accounting"


def test_a_tier_that_a_reset_has_not_forgotten_backs_nothing() -> None:
    class KeepsTier(TieredWindow):
        def reset(self) -> None:
            kept = getattr(self, "_tier", None)
            super().reset()
            self._tier = kept or self._tier

    run = stored(KeepsTier)
    run.reset()
    with pytest.raises(Divergence) as found:
        run.admit("b", PROMPT, None, 5)
    assert found.value.law == "backed"


def test_a_memory_of_the_target_gets_what_transfers_write() -> None:
    class OwnMemory(TieredStates):
        def __init__(self, blocks: int, block_size: int) -> None:
            super().__init__(blocks, block_size)
            self.memory = {"kv": KVMemory(), "states": KVMemory()}

    run = loading(OwnMemory)
    run.complete(0)
    run.poll()
    assert str(run.ready("a")) == "cached 4"
    run.chunk("a", 1)
    run.forward(None, [], None)
    assert run.live["a"].computed == 5


def test_a_picture_shows_what_a_request_holds_that_waits_for_its_load() -> None:
    picture = picture_of_groups(loading())
    requests, *lanes = picture.tables
    assert [row[:3] for row in requests.rows] == [("a", "1 2 3 4 5", "loading")]
    assert [[row[0] for row in lane.rows] for lane in lanes[:3]] == [["a"]] * 3
    assert sum(cell.state == HELD for cell in picture.cells.values()) == 6


class WithoutTier(TwoPools):
    """`mixed_hits` says nothing where nothing is loaded."""

    mixed_hits = True


@pytest.mark.parametrize(
    ("make", "tokens", "fits"),
    [(TwoPools, 5, True), (WithoutTier, 5, True), (TieredPools, 5, False), (TieredPools, 4, True)],
)
def test_a_window_that_may_be_loaded_alone_may_be_asked_for_twice(make: type, tokens: int, fits: bool) -> None:
    class Refuses(make):  # type: ignore[misc]
        """The pool of the window has 4 blocks of 2 tokens."""

        def admit(self, *_: Any) -> None:
            return None

    run = judge(Refuses)
    if not fits:
        assert run.admit("a", PROMPT[:tokens], None, tokens).refused
        return
    with pytest.raises(Divergence) as found:
        run.admit("a", PROMPT[:tokens], None, tokens)
    assert found.value.law == "admission_honesty"


@pytest.mark.parametrize("scope", [*GROUP_SCOPES[:1], *TIER_SCOPES], ids=str)
def test_every_order_of_completion_in_a_small_scope(scope: Any) -> None:
    outcome = watched(explore, KVManagerModel, TieredStates, scope, steps=1_500)
    assert outcome.failure is None, outcome.failure
    assert outcome.reach["store"] > 0


def test_with_several_pools_limbo_is_asked_by_pool() -> None:
    class Lacks(TieredPools):
        def limbo(self) -> int:  # type: ignore[override]
            return 0

    assert any("limbo() is called as limbo(pool)" in text for text in misfits("kv_manager", Lacks))
