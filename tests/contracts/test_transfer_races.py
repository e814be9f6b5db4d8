"""Transfers that meet one another, a batch or a reset: every order in small tiers, and the goals for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from driving import explore, walk

from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.impl.kv_scheduler.fenced import FencedScheduler
from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.impl.variants.chunks import MovesChunks
from kvlockstep.impl.variants.kv_scheduler import OneUnit, OverlapsWithTier, ResetsInFlight, WritesBackIntoFew
from kvlockstep.impl.variants.loading import LOADING_VARIANTS
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_scheduler.model import SchedulerScope
from kvlockstep.models.requests.transfers.moving import Moving
from kvlockstep.models.requests.transfers.places import Place
from kvlockstep.models.requests.transfers.races import ENOUGH, Races
from kvlockstep.reference.kv.transfers import TierUnits, Transfer
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler

# Three blocks of one token, requests of one or two of them.
SCOPE = SchedulerScope(3, 1, budget=2, running=2, live=2, outputs=1, tokens=(1,), priorities=(0,), exhaustive=True)
DEPTH = 8


class ForgetsPool(TieredScheduler):
    """The pool keeps nothing that no request holds, so that every hit comes from the tier."""

    can_reset = False
    drafts = 0

    def poll(self) -> None:
        self._kv.evict_all()
        super().poll()


class ForgetsOne(ForgetsPool, OneUnit):
    """The same with a tier of one unit."""


class ForgetsTwo(ForgetsPool):
    """The same with a tier of two units."""

    def _tier_size(self, blocks: int) -> int:
        return 2


class InFlight(OverlapsWithTier):
    """A batch in flight, and no drafts."""

    def schedule(self) -> Batch:  # type: ignore[override]
        return OverlapScheduler.schedule(self, [{} for _ in self._flights])


class InFlightOne(InFlight, ForgetsOne):
    """One unit, and a batch in flight."""

    drafts = 0


class InFlightTwo(InFlight, ForgetsTwo):
    """Two units, and a batch in flight."""

    drafts = 0


EVERY = (ForgetsOne, ForgetsTwo, InFlightOne, InFlightTwo)


def every_order(scheduler: Callable[..., Any], depth: int) -> Any:
    """All states within so many operations."""
    with Watchdog(5.0).watching() as watchdog:
        outcome = explore(KVSchedulerModel, scheduler, SCOPE, watchdog=watchdog, max_depth=depth)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert not outcome.cut
    assert outcome.depth == depth
    return outcome


@pytest.mark.parametrize(
    ("scheduler", "depth"),
    [(ForgetsOne, 5), *(pytest.param(kind, DEPTH, marks=pytest.mark.slow) for kind in EVERY)],
)
def test_every_state_within_some_operations_of_a_tier_of_one_or_two_units(
    scheduler: Callable[..., Any], depth: int
) -> None:
    outcome = every_order(scheduler, depth)
    assert all(outcome.reach[goal] for goal in ("store", "store_fails", "tier_pinned"))
    assert depth < DEPTH or all(outcome.reach[goal] for goal in ("load", "load_fails", "abort_loading"))


@pytest.mark.parametrize(
    ("model", "target", "reached", "never"),
    [
        (KVSchedulerModel, TieredScheduler, {"loads_reordered"}, {"retaken", "fenced", "load_evicts", "forgotten_end"}),
        (KVSchedulerModel, FencedScheduler, {"retaken", "fenced"}, {"load_evicts", "step_behind_reset"}),
        (KVSchedulerModel, MovesChunks, {"loads_reordered", "load_blocks"}, {"retaken", "tier_pinned"}),
        (KVSchedulerModel, WritesBackIntoFew, {"load_evicts", "tier_pinned", "fenced"}, {"forgotten_end"}),
        (KVSchedulerModel, ResetsInFlight, {"step_behind_reset", "forgotten_end"}, {"retaken", "fenced"}),
        (KVSchedulerModel, OneUnit, {"tier_pinned", "tier_eviction"}, {"load_blocks", "torn"}),
        (KVManagerModel, LOADING_VARIANTS["writes-back-into-few"], {"load_evicts"}, {"retaken", "fenced"}),
        (KVManagerModel, LOADING_VARIANTS["loads-before-it-answers"], {"load"}, {"abort_loading", "preempt_loading"}),
    ],
)
def test_what_meets_is_a_goal_where_a_target_comes_near_it(
    model: Any, target: Callable[..., Any], reached: set[str], never: set[str]
) -> None:
    outcome = walk(model, target, 3_000)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert {goal for goal in reached if not outcome.reach[goal]} == set()
    assert never <= (outcome.unreachable or set())
    assert not never & {goal for goal, times in outcome.reach.items() if times}


def test_a_scheduler_that_frees_under_stores_is_asked_for_a_fenced_wait() -> None:
    asked = {"retaken", "fenced"}
    assert not asked & (walk(KVSchedulerModel, FencedScheduler, 3_000).unreachable or set())


def moving(kind: str, *pairs: tuple[int, int], before: bool = False) -> Moving:
    """A transfer whose places are the blocks and the units of its pairs."""
    sides = [Place("host" if kind == "load" else None, a) for a, _ in pairs]
    others = [Place(None if kind == "load" else "host", b) for _, b in pairs]
    return Moving(Transfer(pairs, kind, "host", pairs, before=before), sides, others)  # type: ignore[arg-type]


def test_a_goal_is_asked_for_where_one_episode_had_many_chances() -> None:
    races, near, far = Races(Counter()), TierUnits([], [0], [1]), TierUnits([0, 1], [], [])
    for _ in range(ENOUGH):
        # However long it stays so.
        races.settled({"host": near}, freed=True)
    assert races.chances == {"tier_pinned": 1, "retaken": 1}
    for _ in range(ENOUGH - 2):
        races.settled({"host": far}, freed=False)
        races.settled({"host": near}, freed=True)
    assert not races.near("tier_pinned")
    assert not races.near("retaken")
    races.settled({"host": far}, freed=False)
    races.settled({"host": near}, freed=True)
    assert races.near("tier_pinned")
    assert races.near("retaken")


@pytest.mark.parametrize(
    ("view", "pinned"),
    [
        (TierUnits([], [0, 1], [2], [0, 1]), True),
        (TierUnits([], [0, 1], [2], [0]), False),
        (TierUnits([0], [1], [], [1]), False),
    ],
)
def test_a_tier_is_full_of_pins_if_no_unit_of_it_can_be_taken(view: TierUnits, pinned: bool) -> None:
    met: Counter[str] = Counter()
    Races(met).settled({"host": view}, freed=False)
    assert bool(met["tier_pinned"]) == pinned


def test_loads_end_in_reversed_order_if_one_ends_before_an_older_load() -> None:
    met: Counter[str] = Counter()
    store, first, second = moving("store", (0, 0)), moving("load", (1, 1)), moving("load", (2, 2))
    Races(met).ended(first, [store, first, second])
    Races(met).ended(store, [first, store])
    Races(met).ended(moving("load", (3, 3), before=True), [first])
    assert not met["loads_reordered"]
    Races(met).ended(second, [store, first, second])
    assert met["loads_reordered"] == 1


def test_a_load_takes_the_block_of_a_victim_in_the_same_operation_only() -> None:
    met: Counter[str] = Counter()
    races = Races(met)
    races.started(moving("store", (4, 0)), [], [False])
    races.started(moving("load", (1, 4)), [], [True])
    assert (races.chances["load_evicts"], met["load_evicts"]) == (1, 0)
    races.started(moving("store", (5, 2)), [], [True])
    races.settled({}, freed=False)
    races.started(moving("load", (1, 5)), [], [True])
    assert (races.chances["load_evicts"], met["load_evicts"]) == (1, 0)
    races.started(moving("store", (5, 2)), [], [True])
    races.started(moving("load", (1, 5)), [], [True])
    assert (races.chances["load_evicts"], met["load_evicts"]) == (2, 1)


def test_a_block_is_taken_again_if_a_batch_writes_what_a_store_still_reads() -> None:
    met: Counter[str] = Counter()
    store, load = moving("store", (4, 0)), moving("load", (5, 5))
    Races(met).written({3, 5}, [store, load])
    assert not met["retaken"]
    Races(met).written({4}, [store, load])
    assert met["retaken"] == 1
