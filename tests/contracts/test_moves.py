"""Moves between two tiers under a kv_scheduler, and requests that wait for one in the queue."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from driving import explore, walk

from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.impl.faulty.kv_scheduler.moves import CachesOnDisk, FetchBlocksQueue
from kvlockstep.impl.variants.moves import MOVE_VARIANTS
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import NotEnabled
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_scheduler.judge import SchedulerJudge
from kvlockstep.models.kv_scheduler.model import SchedulerScope
from kvlockstep.models.requests.transfers.traits import TransferTraits
from kvlockstep.properties import transfers as laws
from kvlockstep.reference.kv.transfers import TierUnits, Transfer
from kvlockstep.reference.kv_manager.moving import DISK
from kvlockstep.reference.kv_scheduler.fetching import FetchingScheduler
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler

SMALL = SchedulerScope(2, 1, budget=2, running=1, live=2, outputs=1, tokens=(1,), priorities=(0,), exhaustive=True)


def judge(make: Callable[..., Any] = CachesOnDisk) -> SchedulerJudge:
    return SchedulerJudge(make(4, 2, 8, 4), 8, 4)


def fetching(make: Callable[..., Any] = CachesOnDisk, lose: bool = False) -> SchedulerJudge:
    """The prefix of b, two blocks, is on the disk only, and the move of it for b is in flight."""
    run = judge(make)
    run.add("a", [1, 2, 3, 4, 5], None, 1, None)
    run.schedule([9])
    assert str(run.update()) == "ended a"
    for kind in ("store", "move"):
        assert {moving.transfer.kind for moving in run.transfers.unended} == {kind}  # type: ignore[union-attr]
        run.complete_all()
        run.poll()
    run.poll()
    if lose:
        run.lose("disk", 0)
    run.add("b", [1, 2, 3, 4, 5], None, 1, None)
    assert str(run.schedule([9])) == "nothing"
    run.update()
    return run


@pytest.mark.parametrize("name", ["fetching", *MOVE_VARIANTS])
def test_every_order_of_completion_in_a_small_scope(name: str) -> None:
    make: Any = {"fetching": FetchingScheduler, **MOVE_VARIANTS}[name]
    with Watchdog(5.0).watching() as watchdog:
        outcome = explore(KVSchedulerModel, make, SMALL, watchdog=watchdog, steps=2_000)
    assert outcome.failure is None, failure_page(outcome.failure)
    # What is moved when it is evicted is moved behind the depth of so few steps.
    assert outcome.reach["move"] > 0 or name == "evicts-to-disk"


def test_a_request_waits_for_its_move_and_loads_what_it_has_brought() -> None:
    run = fetching()
    assert run.avail == 8
    assert str(run.complete(0)) == "move 4 landed"
    run.poll()
    assert str(run.schedule([9])) == "nothing"
    run.update()
    assert str(run.complete(0)) == "load 5 landed"
    assert run.goals_met["moved_load"] == 1
    run.poll()
    assert str(run.schedule([9])) == "b[4:5]"


@pytest.mark.parametrize("end", ["fail", "tear", "lose"])
def test_what_could_not_be_fetched_is_computed(end: str) -> None:
    run = fetching(lose=end == "lose")
    if end == "tear":
        assert str(run.tear(0, 1)) == "move 4 failed"
    elif end == "fail":
        assert str(run.fail(0)) == "move 4 failed"
    else:
        assert str(run.complete(0)) == "move 4 failed"
    run.poll()
    assert (run.goals_met["move_fails"], run.goals_met["move_torn"]) == (1, end == "tear")
    assert str(run.schedule([9])) == "b[0:5]"


def test_a_request_that_waits_for_a_move_keeps_nobody_waiting() -> None:
    run = fetching()
    run.add("c", [7], None, 1, None)
    assert str(run.schedule([9])) == "c[0:1]"
    assert run.goals_met["beside_move"] == 1
    run.update()
    run.abort("b")
    run.complete(0)
    run.poll()


def test_who_stands_behind_a_move_is_named() -> None:
    class Blocks(CachesOnDisk):
        def _admit(self, left: int) -> Any:
            return TieredScheduler._admit(self, left)

    run = fetching(Blocks)
    run.add("c", [7], None, 1, None)
    with pytest.raises(Divergence, match="only moves are in flight, and none of them is for c"):
        run.schedule([9])


@pytest.mark.parametrize("patience", [0, 1, None])
def test_nobody_waits_longer_than_it_may(patience: int | None) -> None:
    made = type("Made", (CachesOnDisk,), {"patience": patience})
    if patience == 0:
        with pytest.raises(Divergence, match="b may wait for a move no longer"):
            fetching(made)
        return
    run = fetching(made)
    if patience is None:
        assert str(run.schedule([9])) == "nothing"
        return
    with pytest.raises(Divergence, match="b may wait for a move no longer"):
        run.schedule([9])


def test_a_store_in_flight_is_a_reason_to_wait() -> None:
    assert laws.starvation(0, [], []) is None
    assert laws.starvation(1, ["a"], []) is None
    run = judge(type("Waits", (FetchingScheduler,), {"_admit": lambda self, left: [], "moves": True}))
    run.add("a", [1], None, 1, None)
    with pytest.raises(Divergence, match="a waits for nothing"):
        run.schedule([9])


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (Transfer(1, "move", DISK, [(0, 0)], source="tape"), "names the tier 'tape'"),
        (Transfer(1, "move", DISK, [(0, 0)]), "names the tier None"),
        (Transfer(1, "move", DISK, [], source="host"), "has no pairs"),
        (Transfer(1, "move", DISK, [(0, 99)], source="host"), "a unit beyond the 8 of disk"),
        (Transfer(1, "move", DISK, [(99, 0)], source="host"), "a unit beyond the 2 of host"),
        (Transfer(1, "move", DISK, [("pool", 0, 0)], source="host"), "not pairs of two units"),
    ],
)
def test_a_move_that_the_contract_does_not_know(move: Transfer, message: str) -> None:
    class Reports(FetchingScheduler):
        def transfers(self) -> Sequence[Transfer]:
            return [move]

    with pytest.raises(Divergence, match=re.escape(message)):
        judge(Reports)


def test_the_source_of_a_move_has_to_be_there() -> None:
    class Reports(FetchingScheduler):
        def transfers(self) -> Sequence[Transfer]:
            return [Transfer(1, "move", DISK, [(0, 0)], source="host")]

        def tier(self, name: str) -> TierUnits:
            return TierUnits([], list(range(self.tiers[name])), [])

    with pytest.raises(Divergence, match="move 1 reads unit 0 of host, which holds nothing of this cache"):
        judge(Reports)


def traits(**declared: Any) -> TransferTraits:
    return TransferTraits(2, {"host": 4, "disk": 8}, moves=True, **declared)


STORE = Transfer(1, "store", "host", [(0, 0)])
DOWN, UP = (Transfer(1, "move", to, [(0, 0)], source=of) for to, of in (("disk", "host"), ("host", "disk")))


@pytest.mark.parametrize(
    ("fails", "store", "down", "up"),
    [
        (None, False, False, False),
        ("any", True, True, True),
        ("stores", True, True, True),
        ({"disk": "any"}, False, True, True),
        ({"disk": "loads"}, False, False, True),
        ({"disk": "stores"}, False, True, False),
        ({"host": "stores"}, True, False, True),
    ],
)
def test_a_move_fails_as_its_tiers_do(fails: Any, store: bool, down: bool, up: bool) -> None:
    made = traits(fails=fails)
    assert (made.may_fail(STORE), made.may_fail(DOWN), made.may_fail(UP)) == (store, down, up)


def test_one_tier_of_several_loses_what_it_holds() -> None:
    assert traits(fails="any", loses=True).may_lose("host")
    some = traits(fails={"disk": "any"}, loses=("disk",))
    assert (some.may_lose("host"), some.may_lose("disk")) == (False, True)
    assert not traits(fails={"disk": "stores"}, loses=True).may_lose("disk")
    run = fetching()
    places = [place.tier for place in run.transfers.losable()]  # type: ignore[union-attr]
    assert set(places) <= {"disk"}
    with pytest.raises(NotEnabled):
        run.lose("host", 0)


@pytest.mark.parametrize(("trait", "value"), [("fails", {"tape": "any"}), ("loses", ("tape",))])
def test_a_tier_that_is_not_there_is_named(trait: str, value: Any) -> None:
    with pytest.raises(Divergence, match=f"the trait {trait} names 'tape', which is none of `tiers`"):
        judge(type("Made", (FetchingScheduler,), {trait: value}))


def test_what_random_runs_reach_with_tiers_that_fail_apart() -> None:
    outcome = walk(KVSchedulerModel, MOVE_VARIANTS["only-disk-fails"], 1_500)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert {"store_fails", "load_fails", "torn"} <= set(outcome.unreachable or ())
    assert outcome.reach["move_fails"] > 0
    assert "move_fails" not in (outcome.unreachable or ())


class PassesOver(FetchingScheduler):
    """Starts the second request first, and says that a tier is asked for the first one."""

    looks_up = True
    asked: tuple[str, ...] = ("a",)

    def looking_up(self) -> Sequence[str]:
        return self.asked

    def _admit(self, left: int) -> Any:
        self._waiting.reverse()
        return super()._admit(left) if len(self._waiting) > 1 else []


def test_who_is_passed_over_while_a_tier_is_asked_may_be_overtaken() -> None:
    for traits, message in (
        ({}, ""),
        ({"looks_up": False}, "b was admitted, but by fcfs a comes first"),
        ({"asked": ()}, "b was admitted, but by fcfs a comes first"),
        ({"asked": None}, "looking_up returned None, not ids"),
    ):
        run = SchedulerJudge(type("Made", (PassesOver,), traits)(4, 2, 1, 4), 1, 4)
        run.add("a", [1], None, 1, None)
        run.add("b", [2], None, 1, None)
        if message:
            with pytest.raises(Divergence, match=message):
                run.schedule([9])
        else:
            assert str(run.schedule([9])) == "b[0:1]"
            run.update()
            with pytest.raises(Divergence, match="a waits for nothing"):
                run.schedule([9])


@pytest.mark.parametrize(("buffered", "law"), [(True, None), (False, "starvation")])
def test_who_needs_units_of_anothers_fetch_waits_if_that_is_declared(buffered: bool, law: str | None) -> None:
    made = type("Made", (MOVE_VARIANTS["fetches-one-by-one"],), {"buffered": buffered})
    outcome = walk(KVSchedulerModel, made, 4_000)
    assert (outcome.failure and outcome.failure.law) == law
    assert bool(outcome.reach["kept_by_move"]) == buffered


@pytest.mark.parametrize(
    ("tokens", "key", "starved"),
    [
        ([1, 2, 3, 4, 5], None, False),
        ([1, 2, 9], None, False),
        ([7, 2, 3], None, True),
        ([1, 2, 3], 0, True),
        ([1, 2], None, False),
    ],
)
def test_who_begins_with_what_is_fetched_for_another_may_wait_for_it(
    tokens: list[int], key: int | None, starved: bool
) -> None:
    """The scheduler lets nobody start in front of b, whose fetch brings the blocks of [1, 2] and [1, 2, 3, 4]."""
    run = fetching(type("Made", (FetchBlocksQueue,), {"extra_key": True}))
    run.add("c", tokens, key, 1, None)
    if starved:
        with pytest.raises(Divergence, match="none of them is for c"):
            run.schedule([9])
    else:
        assert str(run.schedule([9])) == "nothing"


@pytest.mark.parametrize(
    ("trait", "value", "wanted"),
    [
        ("fails", {"disk": "sometimes"}, "not one of"),
        ("fails", {"disk": None}, "not one of"),
        ("fails", ["disk"], "not one of"),
        ("loses", "disk", "not True, False or names"),
        ("loses", [1], "not True, False or names"),
    ],
)
def test_a_value_that_says_nothing_of_the_tiers_is_named(trait: str, value: Any, wanted: str) -> None:
    with pytest.raises(Divergence, match=f"the trait {trait} is .*{wanted}"):
        judge(type("Made", (FetchingScheduler,), {trait: value}))


def test_the_same_said_in_another_way() -> None:
    for value in (["disk"], {"disk"}, ("disk", "disk")):
        assert judge(type("Made", (FetchingScheduler,), {"loses": value})).traits.loses == ("disk",)
    assert judge(type("Made", (FetchingScheduler,), {"loses": []})).traits.loses is False
    assert judge(type("Made", (FetchingScheduler,), {"fails": {}, "loses": False})).traits.fails is None


class SameLists(FetchingScheduler):
    """Its answers about tiers are made in the same lists each time."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self._said = TierUnits([], [], [], [])

    def tier(self, name: str) -> TierUnits:
        for said, units in zip(self._said, super().tier(name), strict=True):
            said[:] = units
        return self._said


def test_answers_about_tiers_may_be_the_same_lists() -> None:
    outcome = walk(KVSchedulerModel, SameLists, 300, seed=0)
    assert outcome.failure is None, failure_page(outcome.failure)


class AddsBadly:
    def __radd__(self, other: Any) -> Any:
        raise RuntimeError("cannot be added")


def test_units_that_cannot_be_added_have_a_verdict() -> None:
    bad = type("Made", (FetchingScheduler,), {"tier": lambda self, name: TierUnits([AddsBadly()], [], [], [])})
    failure = walk(KVSchedulerModel, bad, 20, seed=0).failure
    assert failure is not None
    assert failure.law == "error_contract"
