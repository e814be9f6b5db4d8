"""Goals of groups: what exactly must have happened, and which targets are not asked for it. Small scopes to a depth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from driving import explore, walk
from slow import slow
from watched import watched

from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.scope import KVScope, Mode
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_scheduler.model import SchedulerScope
from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.kv_manager.groups.fine import FineManager
from kvlockstep.reference.kv_manager.groups.geometries import (
    FullAndFineState,
    FullAndState,
    FullAndWindow,
    StatePool,
    TieredWindow,
    TwoPools,
    WindowAlone,
)
from kvlockstep.reference.kv_manager.groups.manager import GroupedManager
from kvlockstep.reference.kv_scheduler.grouped import StatePool as SchedulerStates

ACROSS = ("draft_accepted_across", "draft_rejected_across")
STEP = Op("forward", accept=None, abort=[], reverse=None)


def admit(name: str, tokens: list[int], n: int = 0) -> Op:
    return Op("admit", request=name, tokens=tokens, extra_key=None, n=n or len(tokens))


def decode(name: str, drafts: int = 0) -> Op:
    return Op("decode", request=name, token=9, drafts=[9] * drafts)


def accept(drafts: int) -> Op:
    return Op("forward", accept=drafts, abort=[], reverse=None)


def played(make: Callable[..., Any], size: int, *ops: Op, blocks: int = 8) -> KVManagerModel:
    model = KVManagerModel(KVScope(blocks, size, 4, 4 * blocks), make)
    for op in ops:
        model.step(op)
    return model


def test_a_window_cuts_a_hit_that_full_attention_would_serve() -> None:
    ops = (admit("r0", [1, 2, 3, 4]), STEP, Op("evict_all"))
    model = played(FullAndWindow, 1, *ops)
    # Positions 2 and 3 are still in the window; what is behind one token reads position 0, which is gone.
    assert str(model.step(admit("r1", [1, 2]))) == "cached 0"
    assert model.goals_met["hit_cut_by_window"] == 1
    assert model.goals_met["hit_cut_by_state"] == 0


def test_a_hit_that_full_attention_ends_is_cut_by_no_window() -> None:
    model = played(FullAndWindow, 2, admit("r0", [1, 2, 3]), STEP, admit("r1", [1, 2, 3, 4, 5]))
    assert model.judge.live["r1"].hit == 2
    assert model.goals_met["hit_cut_by_window"] == 0


def test_a_state_cuts_a_hit_that_full_attention_would_serve() -> None:
    model = played(FullAndState, 2, admit("r0", [1, 2, 3, 4]), STEP, admit("r1", [1, 2, 3]))
    # One step has saved the state behind four tokens alone.
    assert model.judge.live["r1"].hit == 0
    assert model.goals_met["hit_cut_by_state"] == 1


def test_hits_are_not_cut_where_nothing_else_has_more_or_a_tier_may_have_it() -> None:
    scope, cut = KVScope(8, 2, 4, 16), {"hit_cut_by_window", "hit_cut_by_state"}
    assert cut <= KVManagerModel(scope, WindowAlone).unreachable()
    assert cut <= KVManagerModel(scope, TieredWindow).unreachable()
    assert cut & KVManagerModel(scope, FullAndState).unreachable() == {"hit_cut_by_window"}
    assert not cut & KVManagerModel(scope, StatePool).unreachable()


def test_a_window_slides_off_a_block_that_stays_published() -> None:
    model = played(FullAndWindow, 2, admit("r0", [1, 2, 3, 4]), STEP, decode("r0"), STEP)
    assert model.goals_met["published_block_slides"] == 0
    for op in (decode("r0"), STEP):
        model.step(op)
    assert model.goals_met["window_slides"] == model.goals_met["published_block_slides"] == 1


class KeepsNothing(GroupedManager):
    prefix_cache = False

    def _publish(self, *_: Any) -> None:
        pass


class WindowWithoutCache(KeepsNothing, FullAndWindow):
    pass


class StateWithoutCache(KeepsNothing, FullAndState):
    pass


def test_a_block_that_another_request_has_need_not_be_published() -> None:
    ops = (admit("r0", [1, 2, 3]), STEP, Op("fork", request="r0", child="r1"), decode("r0"), STEP)
    model = played(WindowWithoutCache, 2, *ops)
    assert model.goals_met["window_slides"] == 1
    assert model.goals_met["published_block_slides"] == 0


def test_a_block_that_slides_and_is_free_at_once_was_not_published() -> None:
    ops = (admit("r0", [1, 2, 3, 4]), STEP, decode("r0"), STEP, decode("r0"), STEP)
    model = played(WindowWithoutCache, 2, *ops)
    assert model.goals_met["window_slides"] == 1
    assert model.goals_met["published_block_slides"] == 0
    assert "published_block_slides" in model.unreachable()


def test_a_state_stays_in_place_across_a_boundary_of_its_grid() -> None:
    model = played(FullAndState, 4, admit("r0", [1] * 7, n=3), STEP, Op("chunk", request="r0", n=1), STEP)
    assert model.goals_met["state_in_place"] == 1
    assert model.goals_met["state_in_place_across"] == 0
    model = played(FullAndState, 4, admit("r0", [1] * 7, n=3), STEP, Op("chunk", request="r0", n=4), STEP)
    assert model.goals_met["state_in_place_across"] == 1
    # This step begins at a boundary, not within a block.
    model = played(StateWithoutCache, 4, admit("r0", [1] * 9, n=4), STEP, Op("chunk", request="r0", n=5), STEP)
    assert model.goals_met["state_in_place"] == 1
    assert model.goals_met["state_in_place_across"] == 0


def test_a_state_that_has_one_block_for_all_tokens_crosses_no_end() -> None:
    class OneBlock(GroupedManager):
        max_length = 16

        def __init__(self, blocks: int, block_size: int) -> None:
            super().__init__((Group("full", block_size), Group("state", 16)), {"kv": 2 * blocks})

    never = KVManagerModel(KVScope(8, 4, 4, 16), OneBlock).unreachable()
    assert set(ACROSS) <= never
    OneBlock.max_length = 17
    assert set(ACROSS).isdisjoint(KVManagerModel(KVScope(8, 4, 4, 16), OneBlock).unreachable())


@pytest.mark.parametrize(
    ("drafts", "right", "met"),
    [
        (1, 0, set()),  # the draft fills the block
        (1, 1, set()),
        (2, 2, {"draft_accepted_across"}),
        (2, 1, {"draft_rejected_across"}),
        (3, 2, {"draft_accepted_across"}),
        (3, 0, {"draft_rejected_across"}),
    ],
)
def test_drafts_cross_the_end_of_a_block_of_a_state(drafts: int, right: int, met: set[str]) -> None:
    model = played(FullAndState, 4, admit("r0", [1, 2]), STEP, decode("r0", drafts), accept(right))
    assert {goal for goal in ACROSS if model.goals_met[goal]} == met


def test_each_pool_refuses_and_evicts_for_itself() -> None:
    full = {"first_pool_full", "second_pool_full", "third_pool_full"}
    # Six blocks of full attention, and four of the window.
    model = played(TwoPools, 2, admit("r0", [1] * 6), STEP, blocks=6)
    model.step(admit("r1", [2, 2]))
    model.step(STEP)
    assert str(model.step(admit("r2", [3, 3, 3]))) == "refused"
    assert {goal for goal in full if model.goals_met[goal]} == {"second_pool_full"}
    assert full & model.unreachable() == {"first_pool_full", "third_pool_full"}
    assert "one_pool_full" not in model.unreachable()
    assert {*full, "one_pool_full"} <= KVManagerModel(KVScope(5, 2, 4, 16), FullAndWindow).unreachable()


@pytest.mark.parametrize(
    ("make", "met"),
    [
        (TwoPools, {"first_pool_full", "second_pool_full", "first_pool_evicts", "second_pool_evicts"}),
        (FullAndState, {"state_in_place_across"}),
    ],
)
def test_a_reference_goes_through_what_no_target_is_asked_for(make: Any, met: set[str]) -> None:
    assert met <= KVManagerModel(KVScope(5, 2, 4, 16), make).unreachable()
    outcome = walk(KVManagerModel, make, 4_000)
    assert outcome.failure is None
    assert met <= {goal for goal, times in outcome.reach.items() if times}


def test_a_target_that_does_not_tell_what_it_holds_is_not_asked_for_what_only_that_shows() -> None:
    class SaysNothing(StatePool):
        def held(self, rid: str, group: int) -> None:  # type: ignore[override]
            return None

    unseen = {"published_block_slides"}
    for make, never in ((StatePool, set[str]()), (SaysNothing, unseen)):
        model = played(make, 2, admit("r0", [1] * 4), STEP)
        for _ in range(4):
            model.step(decode("r0"))
            model.step(STEP)
        model.step(Op("finish", request="r0"))
        assert unseen & model.unreachable() == never


@pytest.mark.parametrize(("right", "goal"), [(0, "draft_rejected_across"), (3, "draft_accepted_across")])
def test_drafts_of_a_scheduler_cross_the_end_of_a_block_of_a_state(right: int, goal: str) -> None:
    model = KVSchedulerModel(SchedulerScope(8, 2, budget=8, running=4, live=4, outputs=8), SchedulerStates)
    schedule = Op("schedule", tokens=[1])
    model.step(Op("add", request="r0", tokens=[1, 2, 3], extra_key=None, max_tokens=8, priority=None))
    for op in (schedule, Op("update"), Op("draft", request="r0", tokens=[2, 2, 2])):
        model.step(op)
    # The grid has four tokens: the known one is the fourth, its drafts are behind the end of the block.
    model.step(schedule.but(accept=right))
    assert {other for other in ACROSS if model.goals_met[other]} == {goal}


FULL, WINDOW = Group("full", 2), Group("window", 2, reach=3)
GEOMETRIES = {
    "full and window": lambda *_: GroupedManager((FULL, WINDOW), {"kv": 5}),
    "full and state": lambda *_: GroupedManager((FULL, Group("state", 2)), {"kv": 6}),
    "window": lambda *_: GroupedManager((WINDOW,), {"kv": 4}),
    "two pools": lambda *_: GroupedManager((FULL, WINDOW._replace(pool="window")), {"kv": 3, "window": 2}),
    "fine hashes": lambda *_: FineManager((FULL, Group("state", 1)), {"kv": 6}, unit=1),
}
# One word, prompts of up to five tokens: of two requests at a time, and of one.
TWO = KVScope(3, 2, 2, 5, tokens=(1,), mode=Mode.EXHAUSTIVE)
ONE = KVScope(3, 2, 1, 5, tokens=(1,), mode=Mode.EXHAUSTIVE)


@pytest.mark.parametrize("deep", [(ONE, 4), *slow((TWO, 4), (ONE, 8))], ids=["one", "two", "one, deeper"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_every_state_up_to_a_depth_holds(geometry: str, deep: tuple[KVScope, int]) -> None:
    scope, depth = deep
    outcome = watched(explore, KVManagerModel, GEOMETRIES[geometry], scope, max_depth=depth)
    assert outcome.failure is None
    assert not outcome.cut
    assert outcome.depth == depth


def test_a_hit_within_a_block_is_a_copy_where_others_have_the_block() -> None:
    model = played(FullAndFineState, 4, admit("r0", [1, 2, 3, 4, 5, 6, 7], n=6), STEP)
    for op in (admit("r1", [1, 2, 3, 4, 5, 6, 8]), STEP):
        model.step(op)
    first, second = (model.judge.adapter.slots(name, 0) for name in ("r0", "r1"))
    assert model.judge.live["r1"].hit == 6
    assert model.goals_met["copies"] == 1
    assert first[:4] == second[:4]
    assert first[4:] != second[4:]


def test_a_block_that_is_hit_to_the_end_of_what_it_has_is_gone_on_in() -> None:
    model = played(FullAndFineState, 4, admit("r0", [1, 2, 3, 4, 5, 6, 7], n=6), STEP, Op("abort", request="r0"))
    for op in (admit("r1", [1, 2, 3, 4, 5, 6, 8]), STEP):
        model.step(op)
    assert model.judge.live["r1"].hit == 6
    assert model.goals_met["copies"] == 0
