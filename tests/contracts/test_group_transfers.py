"""kv_scheduler with groups and tiers: right schedulers pass, and the judge names what is wrong with which group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from driving import explore, walk
from watched import watched

from kvlockstep.drivers.episode import not_evaluated
from kvlockstep.impl.kv_scheduler.fenced_groups import FencedStates, FencedWindow
from kvlockstep.impl.variants.group_transfers import LoadsStatesApart, LoadsStatesInside, OverlapsWithTieredWindow
from kvlockstep.impl.variants.scheduler_groups import AnnouncesWithTier
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_scheduler.groups.judge import GroupedSchedulerJudge
from kvlockstep.models.kv_scheduler.model import GROUP_SCOPES, SchedulerScope
from kvlockstep.models.requests.groups.memory import WHOLE, GroupMemory
from kvlockstep.models.requests.groups.places import GroupPlaces
from kvlockstep.models.requests.request import Request
from kvlockstep.models.requests.transfers.places import OfPool, Place
from kvlockstep.reference.kv.memory import IN_FLIGHT, LOST, VOID
from kvlockstep.reference.kv.transfers import Transfer
from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.kv_scheduler.tiered_groups import TieredPools, TieredStates, TieredWindow
from kvlockstep.targets.validation import misfits


def judge(make: Callable[..., Any], sizes: tuple[int, int] = (6, 2)) -> GroupedSchedulerJudge:
    return GroupedSchedulerJudge(make(*sizes, 12, 4), 12, 4)


def forgetting(make: type) -> type:
    """The pools keep nothing that no request holds, so that every hit comes from the tier."""

    class Forgets(make):  # type: ignore[misc]
        def poll(self) -> None:
            self._kv.evict_all()
            super().poll()

    return Forgets


def stored(make: Callable[..., Any], tokens: list[int]) -> GroupedSchedulerJudge:
    """A request has ended, and what it has computed lies in the tier alone."""
    run = judge(make)
    run.add("a", tokens, None, 1, None)
    run.schedule([5])
    assert str(run.update()) == "ended a"
    run.complete_all()
    run.poll()
    run.poll()
    return run


def loading(make: Callable[..., Any]) -> GroupedSchedulerJudge:
    """The prompt comes again with one token more, and waits for what its hit needs of the tier."""
    run = stored(forgetting(make), [1, 2, 3, 4])
    run.add("b", [1, 2, 3, 4, 5], None, 2, None)
    assert str(run.schedule([5])) == "nothing"
    run.update()
    return run


@pytest.mark.parametrize("scope", GROUP_SCOPES, ids=str)
@pytest.mark.parametrize("make", [TieredWindow, TieredStates, FencedStates])
def test_every_order_of_completion_in_small_scopes(make: Callable[..., Any], scope: SchedulerScope) -> None:
    outcome = watched(explore, KVSchedulerModel, make, scope, steps=2_000)
    assert outcome.failure is None, outcome.failure
    assert outcome.reach["store"] > 0


def test_a_load_brings_the_blocks_that_each_group_reads_behind_the_hit() -> None:
    run = loading(TieredStates)
    (moving,) = run.transfers.unended
    # The whole prefix, the block that a window of 3 reaches into, and the state behind 4 tokens.
    assert [str(place) for place in moving.targets] == [
        "block 4 of pool kv", "block 5 of pool kv", "block 6 of pool kv", "block 1 of pool states",
    ]  # fmt: skip
    run.complete(0)
    run.poll()
    assert str(run.schedule([6])) == "b[4:5]"
    assert run.goals_met["loaded_groups"] == run.goals_met["loaded_state"] == 1


def test_a_window_slides_off_a_block_that_is_being_stored() -> None:
    run = judge(FencedWindow)
    run.add("a", [1, 2, 3, 4, 5], None, 2, None)
    run.schedule([6])
    run.update()
    assert run.goals_met["window_slides_in_store"] == 1
    (slid,) = [m.sources[0].unit for m in run.transfers.unended][-1:]
    run.settle()
    assert all(run.places.read(place) == m.contents[0] for m in run.transfers.unended for place in m.sources), slid


def test_a_block_that_is_free_under_its_store_keeps_what_it_holds() -> None:
    run = judge(forgetting(FencedWindow))
    run.add("a", [1, 2, 3, 4], None, 1, None)
    run.schedule([5])
    run.update()
    run.poll()
    assert {place.unit for m in run.transfers.unended for place in m.sources} <= set(run.adapter.free_slots())
    run.complete_all()
    run.poll()
    assert run.avail == 12


def test_each_group_may_be_loaded_apart() -> None:
    run = loading(LoadsStatesApart)
    assert [len(m.targets) for m in run.transfers.unended] == [2, 1, 1]
    for last in (2, 1, 0):
        run.complete(last)
    run.poll()
    assert str(run.schedule([6])) == "b[4:5]"
    assert run.goals_met["loaded_groups"] == run.goals_met["loaded_state"] == 1


def test_a_batch_whose_load_has_failed_writes_nothing_that_counts() -> None:
    run = stored(forgetting(LoadsStatesInside), [1, 2, 3, 4])
    run.add("b", [1, 2, 3, 4, 5], None, 2, None)
    assert str(run.schedule([5], lost=0)) == "b[4:5]"
    written = [Place(None, block) for block in run.written_blocks(run.adapter._launched[0])]
    assert [run.places.read(place).cells for place in written] == [{0: VOID}, {0: VOID}, {WHOLE: VOID}]
    run.places.give_up(())
    assert [run.places.read(place).cells for place in written] == [{0: LOST}, {0: LOST}, {WHOLE: LOST}]
    run.update()
    assert str(run.schedule([6])) == "b[0:5]"


def test_what_one_group_lacks_on_the_device_is_loaded_alone() -> None:
    """The pool still has the full group; its window blocks are gone."""

    class ForgetsWindows(TieredPools):
        def poll(self) -> None:
            for block in list(self._kv._pools["window"].idle):
                self._kv._pools["window"].evict(block)
            super().poll()

    run = stored(ForgetsWindows, [1, 2, 3, 4, 5])
    run.add("b", [1, 2, 3, 4, 5], None, 2, None)
    run.schedule([5])
    (moving,) = run.transfers.unended
    assert {place.unit.pool for place in moving.targets} == {"window"}
    run.update()
    run.complete(0)
    run.poll()
    assert str(run.schedule([6])) == "b[4:5]"
    assert run.goals_met["loaded_for_one"] == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (TieredWindow, "load_before_read: b position 0 (slot 8 of block 4) holds"),
        (TieredStates, "load_before_read: b reads its state in block 1, which holds"),
    ],
)
def test_what_is_read_before_its_load_has_landed_is_named(make: type, said: str) -> None:
    class Impatient(make):  # type: ignore[misc]
        def _begin(self, load: Any) -> None:
            super()._begin(load)
            for key, block in zip(load.keys, load.blocks, strict=True):
                self._publish_loaded(key, block)

    run = loading(Impatient)
    run.adapter._loads.clear()
    with pytest.raises(Divergence) as found:
        run.schedule([6])
    assert said in f"{found.value.law}: {found.value.message}"


def test_blocks_of_several_pools_are_named_with_their_pool() -> None:
    class NoPool(TieredPools):
        def transfers(self) -> list[Transfer]:
            return [t._replace(pairs=[pair[1:] for pair in t.pairs]) for t in super().transfers()]

    run = judge(NoPool)
    run.add("a", [1, 2, 3], None, 1, None)
    run.schedule([5])
    with pytest.raises(Divergence, match=r"not pairs .*, each behind the name of its pool \(kv, window\)"):
        run.update()


def test_a_target_of_a_load_is_not_available_in_its_pool() -> None:
    class CountsTargets(TieredPools):
        def avail(self, pool: str = "") -> int:
            targets = [block for load in self._loads.values() for block in load.blocks if block[0] == pool]
            return super().avail(pool) + len(targets)

    run = stored(forgetting(CountsTargets), [1, 2, 3, 4])
    run.add("b", [1, 2, 3, 4, 5], None, 2, None)
    with pytest.raises(Divergence, match=r"pool kv: avail=6 .* that transfers write: 2 blocks counted twice") as found:
        run.schedule([5])
    assert found.value.law == "accounting"


def test_a_load_into_what_a_batch_in_flight_uses_is_out_of_order() -> None:
    unordered = type("Unordered", (OverlapsWithTieredWindow,), {"ordered": False})
    outcome = walk(KVSchedulerModel, unordered, 6_000)
    assert outcome.failure is not None
    assert outcome.failure.law == "stream_order"


def test_the_blocks_of_an_item_are_those_that_it_needs_in_each_pool() -> None:
    run = judge(TieredStates)
    run.add("a", [1, 2, 3, 4, 5, 6, 7, 8], None, 2, None)
    run.schedule([5])
    run.update()
    (item,) = run.adapter.schedule().items
    run.check_tables(item)
    full, window, state = (run.adapter.held("a", g) for g in range(3))
    used = {OfPool("kv", block) for block in (*full, *window[-2:])} | {OfPool("states", block) for block in state}
    assert set(run.used_blocks(item)) == used
    assert set(run.written_blocks(item)) == {
        OfPool("kv", full[-1]),
        OfPool("kv", window[-1]),
        OfPool("states", state[-1]),
    }
    assert run.copied_blocks([("states", 0, 3)]) == [OfPool("states", 3)]


def test_with_several_pools_limbo_is_asked_by_pool() -> None:
    class Lacks(TieredPools):
        def limbo(self) -> int:  # type: ignore[override]
            return 0

    assert any("limbo() is called as limbo(pool)" in text for text in misfits("kv_scheduler", Lacks))


def test_what_a_transfer_has_left_stays_beside_what_is_written_later() -> None:
    groups = Group("full", 2), Group("window", 2, reach=3, pool="other")
    memory = GroupMemory(groups, Counter())
    places = GroupPlaces(memory, ["kv", "other"], 2)
    place = Place(None, OfPool("kv", 0))
    request = Request("a", [1, 2], None)
    for mark, words in ((IN_FLIGHT, "what a transfer has not written yet"), (LOST, "what a failed transfer left")):
        places.fill(place, mark)
        assert places.in_words(places.read(place)) == words
        memory.begin_forward()
        memory.write(request, 0, [0, 1], range(1), memory.stamps(request, 1))
        assert memory.first_wrong(request, 0, [0, 1], range(1), memory.stamps(request, 1)) is None
        assert memory.first_wrong(request, 0, [0, 1], range(2), memory.stamps(request, 2)).got == words


def test_a_copy_of_a_block_has_its_group() -> None:
    groups = Group("full", 2), Group("window", 2, reach=3)
    memory = GroupMemory(groups, Counter())
    places = GroupPlaces(memory, ["kv"], 2)
    request = Request("a", [1, 2], None)
    memory.begin_forward()
    stamps = memory.stamps(request, 2)
    memory.write(request, 0, [0, 1], range(2), stamps)
    places.write(Place("host", 3), places.read(Place(None, 0)))
    places.write(Place(None, 1), places.read(Place("host", 3)))
    assert memory.first_wrong(request, 0, [2, 3], range(2), stamps) is None
    assert memory.first_wrong(request, 1, [2, 3], range(2), stamps).got == "the KV of [1] in group 0"


def test_a_block_that_is_written_again_has_nothing_left_of_a_failed_load() -> None:
    class Quiet(TieredWindow):
        """Does not say what is free, so nothing is poisoned in between."""

        def free_slots(self, pool: str = "") -> None:  # type: ignore[override]
            return None

    outcome = walk(KVSchedulerModel, Quiet, 4_000)
    assert outcome.failure is None, outcome.failure
    assert not not_evaluated(KVSchedulerModel, outcome.evaluated, outcome.not_checked)


def test_a_scheduler_announces_its_groups_and_may_leave_out_its_tier() -> None:
    run = loading(AnnouncesWithTier)
    run.complete_all()
    run.poll()
    assert str(run.schedule([5])) == "b[4:5]"
    assert run.goals_met["announced_hit"] == 1
    model = KVSchedulerModel(GROUP_SCOPES[0], AnnouncesWithTier)
    assert "event_consistency" not in model.not_checked()
    assert {"announced_hit", "announced_tier"} & model.unreachable() == {"announced_tier"}


def test_what_a_load_brings_back_unannounced_is_named() -> None:
    class Silent(AnnouncesWithTier):
        def _publish_loaded(self, key: Any, block: Any) -> None:
            told = len(self._kv._events)
            super()._publish_loaded(key, block)
            del self._kv._events[told:]

    run = loading(Silent)
    run.add("c", [1, 2, 3, 4, 5, 6, 7], None, 1, None)
    run.complete_all()
    run.poll()
    with pytest.raises(Divergence, match=r"were hit, but by the events group 0 .* lacks the block") as found:
        run.schedule([5])
    assert found.value.law == "event_consistency"
