"""Events of a kv_manager: what a listener makes of them, and what our block manager tells."""

from __future__ import annotations

from typing import Any

import pytest

from kvlockstep.impl.faulty import FAULTS
from kvlockstep.impl.faulty.kv_scheduler.events import ForgetsPool
from kvlockstep.impl.kv_manager.blocks import BlockManager
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_scheduler.judge import SchedulerJudge
from kvlockstep.models.requests import adapter
from kvlockstep.properties.kv_manager.laws import event_consistency
from kvlockstep.properties.kv_manager.listener import Fetched, Hit, Listener, Room
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvlockstep.reference.kv_scheduler.announcing import AnnouncingScheduler
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler

STORED = BlockStored(("a", "b"), None, (1, 2, 3, 4), 2)
CHILD = BlockStored(("c",), "b", (5, 6), 2)


def listener_of(*events: Event, counting: bool = False) -> Listener:
    """One that has heard these events, none of which contradicts those before it."""
    listener = Listener(2, counting)
    for event in events:
        assert event_consistency(listener, event) is None
        listener.apply(event)
    return listener


def known(listener: Listener, tokens: list[int], extra_key: int | None = None) -> int:
    """The tokens that a request will hit, as the listener has it."""
    answers = [n for n in range(len(tokens)) if event_consistency(listener, Hit(tokens, extra_key, n)) is None]
    assert answers == list(range(answers[0], min(answers[0] + 2, len(tokens))))
    return answers[0]


@pytest.mark.parametrize(
    ("tokens", "extra_key", "length"),
    [
        ([1, 2, 3, 4, 5, 6, 7], None, 6),
        ([1, 2, 3, 4, 5, 6], None, 4),
        ([1, 2, 3, 4], None, 2),
        ([1, 2, 9, 9, 5, 6, 7], None, 2),
        ([3, 4, 5], None, 0),
        ([1, 2, 3], 7, 0),
        ([1], None, 0),
    ],
)
def test_a_prefix_is_known_as_far_as_it_is_stored(tokens: list[int], extra_key: int | None, length: int) -> None:
    assert known(listener_of(STORED, CHILD), tokens, extra_key) == length


def test_children_wait_for_their_parent() -> None:
    listener = listener_of(STORED, CHILD, BlockRemoved(("a",)))
    assert known(listener, [1, 2, 3, 4, 5, 6, 7]) == 0
    listener.apply(BlockStored(("a",), None, (1, 2), 2))
    assert known(listener, [1, 2, 3, 4, 5, 6, 7]) == 6


@pytest.mark.parametrize(("counting", "length"), [(True, 4), (False, 0)])
def test_two_copies_are_one_for_a_set(counting: bool, length: int) -> None:
    listener = listener_of(STORED, STORED, BlockRemoved(("a", "b")), counting=counting)
    assert known(listener, [1, 2, 3, 4, 5]) == length


def test_everything_can_be_gone() -> None:
    listener = listener_of(STORED, AllBlocksCleared())
    assert known(listener, [1, 2, 3]) == 0
    assert event_consistency(listener, Room(0)) is None
    assert event_consistency(listener, CHILD) is None, "a parent may go before its child"


@pytest.mark.parametrize(
    ("event", "wrong"),
    [
        (BlockStored(("d",), None, (1,), 1), "a block has 2"),
        (BlockStored(("d",), None, (1, 2, 3, 4), 2), "a block has 2"),
        (BlockStored(("d",), "x", (1, 2), 2), "'x', which was never stored"),
        (BlockStored(("d",), "a", (1, 2), 2, 7), "which has another"),
        (BlockStored(("a",), None, (1, 9), 2), "gives the key 'a' to a second prefix"),
        (BlockStored(("a",), None, (1, 2), 2, 7), "gives the key 'a' to a second prefix"),
        (BlockStored(("b",), None, (3, 4), 2), "gives the key 'b' to a second prefix"),
        (BlockRemoved(("x",)), "'x', which is not stored"),
        ("cleared", "is no event"),
    ],
)
def test_what_makes_no_sense(event: Any, wrong: str) -> None:
    assert wrong in str(event_consistency(listener_of(STORED), event))


def test_a_key_may_name_another_prefix_after_its_removal() -> None:
    listener = listener_of(STORED, BlockRemoved(("a", "b")), BlockStored(("a",), None, (8, 9), 2, 7))
    assert known(listener, [8, 9, 1], 7) == 2


@pytest.mark.parametrize("counting", [True, False])
def test_a_removal_too_many(counting: bool) -> None:
    listener = listener_of(STORED, BlockRemoved(("a",)), counting=counting)
    assert (event_consistency(listener, BlockRemoved(("a",))) is None) is not counting
    assert (event_consistency(listener, BlockRemoved(("b", "b"))) is None) is not counting


def test_no_more_is_stored_than_is_not_free() -> None:
    listener = listener_of(STORED, CHILD)
    assert event_consistency(listener, Room(3)) is None
    assert (
        event_consistency(listener, Room(2)) == "the events leave 3 blocks stored, but by free_now only 2 are not free"
    )


def test_a_block_is_known_where_it_is_stored() -> None:
    listener = listener_of(STORED._replace(medium="host"), BlockStored(("a",), None, (1, 2), 2))
    assert known(listener, [1, 2, 3, 4, 5]) == 2
    loading = Hit([1, 2, 3, 4, 5], None, 4, loads=True)
    assert event_consistency(listener, loading) is None
    assert event_consistency(listener, loading._replace(cached=2)) is None
    assert "the events say 2 to 4" in str(event_consistency(listener, loading._replace(cached=0)))
    listener.apply(BlockRemoved(("b",), "host"))
    assert "but the events say 2" in str(event_consistency(listener, loading))
    listener.apply(AllBlocksCleared())
    assert event_consistency(listener, Room(0, "tier('host')", "host")) is None


def test_a_load_reads_what_its_tier_has_announced() -> None:
    listener = listener_of(STORED)
    assert event_consistency(listener, Fetched([1, 2], None, "host")) is None, "nobody speaks of this tier"
    listener.apply(BlockStored(("a",), None, (1, 2), 2, medium="host"))
    assert event_consistency(listener, Fetched([1, 2], None, "host")) is None
    assert "loaded from host, where no event" in str(event_consistency(listener, Fetched([1, 2, 3, 4], None, "host")))
    assert "where no event" in str(event_consistency(listener, Fetched([1, 2], 7, "host")))


def test_no_more_is_stored_in_a_tier_than_can_be_hit_there() -> None:
    listener = listener_of(STORED._replace(medium="host"))
    assert event_consistency(listener, Room(2, "tier('host')", "host")) is None
    assert event_consistency(listener, Room(0)) is None, "the pool has nothing"
    assert "2 blocks stored in host, but by tier('host') only 1" in str(
        event_consistency(listener, Room(1, "tier('host')", "host"))
    )


def test_what_comes_back_is_announced_behind_its_parent() -> None:
    child = BlockStored(("b",), "a", (3, 4), 2)
    listener = listener_of(STORED, BlockRemoved(("a", "b")))
    assert event_consistency(listener, child) is None, "a parent may be gone"
    listener.come_back([(None, [1, 2]), (None, [1, 2, 3, 4])])
    assert "'b', which comes back from a tier before its parent" in str(event_consistency(listener, child))
    assert event_consistency(listener, child._replace(medium="host")) is None, "that is of the pool only"
    assert event_consistency(listener, STORED) is None, "both in one event"
    listener.apply(BlockStored(("a",), None, (1, 2), 2))
    assert event_consistency(listener, child) is None
    listener.apply(BlockRemoved(("a",)))
    assert event_consistency(listener, child) is not None
    listener.computed(None, [1, 2, 3, 4, 5], 2, 4)
    assert event_consistency(listener, child) is None, "a request has computed this block itself"
    listener.forget(back=False)
    assert event_consistency(listener, child) is not None
    listener.computed(None, [1, 2, 3, 4, 5], 0, 3)
    assert event_consistency(listener, child) is not None, "it has computed a part of the block"
    listener.forget(back=True)
    assert event_consistency(listener, child) is None


@pytest.mark.parametrize(
    "junk",
    [
        STORED._replace(keys=None),
        STORED._replace(keys=([1],)),
        STORED._replace(parent=[1]),
        STORED._replace(extra_key={}),
        STORED._replace(tokens=5),
        STORED._replace(tokens=(1, [2], 3, 4)),
        STORED._replace(block_size="two"),
        STORED._replace(group=None),
        BlockRemoved(5),
        BlockRemoved(("a",), []),
    ],
)
def test_an_event_with_fields_of_other_types_is_none(junk: Event) -> None:
    def events() -> list[Event]:
        return [junk]

    with pytest.raises(Divergence, match="not events"):
        adapter.events(events)


def test_numbers_of_events_may_be_of_any_type() -> None:
    numpy = pytest.importorskip("numpy")
    given = STORED._replace(tokens=numpy.array(STORED.tokens), block_size=numpy.int64(2), group=numpy.int8(0))
    assert adapter.events(lambda: [given]) == [STORED]


def test_a_tier_that_is_removed_from_says_nothing_of_the_pool() -> None:
    listener = listener_of(STORED, STORED._replace(medium="host"), BlockRemoved(("a", "b"), "host"))
    assert known(listener, [1, 2, 3, 4, 5]) == 4
    assert "gives the key 'a' to a second prefix" in str(
        event_consistency(listener, BlockStored(("a",), None, (9, 9), 2, medium="host"))
    )


def test_one_event_gives_a_key_to_one_prefix() -> None:
    twice = BlockStored(("a", "a"), None, (1, 2, 3, 4), 2)
    assert event_consistency(Listener(2, counting=True), twice) == "BlockStored gives the key 'a' to a second prefix"


def test_a_load_from_a_silent_tier_may_be_of_any_length() -> None:
    listener, tokens = listener_of(STORED._replace(keys=("a",), tokens=(1, 2))), [1, 2, 3, 4, 5, 6, 7]
    hits = [Hit(tokens, None, n, loads=True) for n in (0, 2, 4, 6)]
    assert [hit.cached for hit in hits if event_consistency(listener, hit) is None] == [2]
    heard = [hit._replace(silent=True) for hit in hits]
    assert [hit.cached for hit in heard if event_consistency(listener, hit) is None] == [2, 4, 6]


@pytest.mark.parametrize(("silent", "met"), [(False, True), (("host",), False), (True, False)])
def test_only_a_tier_that_is_announced_has_a_goal(silent: Any, met: bool) -> None:
    class Announces(AnnouncingScheduler):
        silent_tiers = silent

    model = KVSchedulerModel(KVSchedulerModel.scopes[0], Announces)
    assert ("announced_tier" not in model.unreachable()) is met


def test_a_silent_tier_is_one_of_the_tiers() -> None:
    class Announces(AnnouncingScheduler):
        silent_tiers = ("disk",)

    with pytest.raises(Divergence, match="the trait silent_tiers names 'disk', which is none of `tiers`"):
        SchedulerJudge(Announces(8, 2, 8, 4), 8, 4)


def announcing(name: str | None = None) -> Any:
    """A scheduler that has computed two blocks and stored them; its pool has forgotten them."""
    made = FAULTS[name].make if name else type("Made", (ForgetsPool,), {})
    run = SchedulerJudge(made(8, 2, 8, 4), 8, 4)
    run.add("a", [1, 2, 3, 4, 5], None, 1, None)
    run.schedule([5])
    run.update()
    run.complete_all()
    run.poll()
    run.add("b", [1, 2, 3, 4, 5], None, 1, None)
    run.schedule([5])
    run.update()
    return run


def test_a_scheduler_hits_what_it_has_announced() -> None:
    run = announcing()
    run.complete_all()
    assert str(run.schedule([5])) == "b[4:5]"
    assert run.goals_met["announced_hit"] == 1
    assert run.goals_met["announced_tier"] >= 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sched-events-child-first", "comes back from a tier before its parent"),
        ("sched-events-load-silent", "4 tokens of .* were hit, but the events say 0"),
    ],
)
def test_events_of_what_comes_back(name: str, message: str) -> None:
    run = announcing(name)
    with pytest.raises(Divergence, match=message) as found:  # noqa: PT012
        run.complete_all()
        run.schedule([5])
    assert found.value.law == "event_consistency"


def test_a_scheduler_without_events_is_not_asked() -> None:
    assert event_consistency.id not in {law.id for law in KVSchedulerModel.laws_in_play({"accounting": 1})}
    model = KVSchedulerModel(KVSchedulerModel.scopes[0], TieredScheduler)
    assert model.judge.listening is None
    assert event_consistency.id not in model.not_checked()


def compute(manager: BlockManager, rid: str, tokens: list[int], extra_key: int | None = None) -> None:
    cached = manager.admit(rid, tokens, extra_key, len(tokens))
    assert cached is not None
    manager.launch()
    manager.commit(rid, len(tokens) - cached)
    manager.finish(rid)


def test_our_manager_tells_first_what_is_there_and_then_what_happens() -> None:
    manager = BlockManager(3, 2)
    compute(manager, "r0", [1, 2, 3, 4], 7)
    first = manager.events()
    assert first == [BlockStored((0,), None, (1, 2), 2, 7), BlockStored((1,), 0, (3, 4), 2)]
    assert manager.events() == []
    compute(manager, "r1", [5, 6, 7, 8])
    assert manager.events() == [
        BlockRemoved((1,)),
        BlockStored((2,), None, (5, 6), 2),
        BlockStored((1,), 2, (7, 8), 2),
    ]
    manager.reset()
    assert manager.events() == [AllBlocksCleared()]


def test_nothing_is_kept_for_nobody() -> None:
    manager = BlockManager(3, 2)
    compute(manager, "r0", [1, 2, 3, 4])
    manager.reset()
    assert manager._events is None
