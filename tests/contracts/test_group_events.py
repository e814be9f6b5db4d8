"""Events of a kv_manager with groups: what a listener makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvlockstep.models.kv_manager.groups.judge import GroupedJudge
from kvlockstep.properties.kv_manager.group_listener import GroupListener
from kvlockstep.properties.kv_manager.laws import event_consistency
from kvlockstep.properties.kv_manager.listener import Fact, Fetched, Hit, Room
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvlockstep.reference.kv_manager.groups.announcing import AnnouncingGroups, AnnouncingState
from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.kv_manager.groups.geometries import TieredState

FULL, WINDOW, CHUNKED, STATE = Group("full", 2), Group("window", 2, 3), Group("chunked", 2, 4), Group("state", 4)
TOKENS = (1, 2, 3, 4, 5, 6, 7, 8)
KEYS = "abcd"


def stored(group: int, *places: int, size: int = 2) -> list[BlockStored]:
    """An event for each block of TOKENS at these places; a key is the same in every group."""
    told = []
    for end in ((place + 1) * size for place in places):
        parent = KEYS[(end - size) // 2 - 1] if end > size else None
        told.append(BlockStored((KEYS[end // 2 - 1],), parent, TOKENS[end - size : end], size, group=group))
    return told


def listener_of(groups: tuple[Group, ...], *events: Event, counting: bool = False) -> GroupListener:
    """One that has heard these events, none of which contradicts those before it."""
    listener = GroupListener(groups, counting)
    for event in events:
        assert event_consistency(listener, event) is None
        listener.apply(event)
    return listener


@pytest.mark.parametrize(
    ("other", "places", "length"),
    [
        # Of a window of 3 the token behind 6 reads positions 4 and 5, the one behind 4 positions 2 and 3.
        (WINDOW, [0, 1, 2], 6),
        (WINDOW, [2], 6),
        (WINDOW, [1], 4),
        (WINDOW, [0], 2),
        (WINDOW, [], 0),
        # Behind 4 tokens a chunk of 4 begins, and reads nothing.
        (CHUNKED, [2], 6),
        (CHUNKED, [], 4),
    ],
)
def test_a_length_is_known_if_every_group_has_what_is_read_behind_it(
    other: Group, places: list[int], length: int
) -> None:
    listener = listener_of((FULL, other), *stored(0, 0, 1, 2), *stored(1, *places))
    assert [n for n in range(8) if event_consistency(listener, Hit(TOKENS, None, n)) is None] == [length]


def test_a_state_is_known_behind_its_last_token_only() -> None:
    listener = listener_of((FULL, STATE), *stored(0, 0, 1, 2), *stored(1, 0, size=4))
    assert event_consistency(listener, Hit(TOKENS, None, 4)) is None
    assert event_consistency(listener, Hit(TOKENS, None, 2)) == (
        "2 tokens of [1, 2, 3, 4, 5, 6, 7, 8] were hit, but by the events no block of group 1 (state, blocks of 4) "
        "ends there"
    )
    listener.apply(BlockRemoved(("b",), group=1))
    assert event_consistency(listener, Hit(TOKENS, None, 0)) is None


def test_the_parent_may_be_a_block_of_another_group() -> None:
    heard = listener_of((FULL, STATE), *stored(0, 0, 1, 2, 3), *stored(1, 1, size=4))
    assert event_consistency(heard, Hit((*TOKENS, 9), None, 8)) is None


@pytest.mark.parametrize(
    ("fact", "wrong"),
    [
        (stored(2, 0)[0], "BlockStored of group 2; the groups are 0 to 1"),
        (BlockRemoved(("a",), group=-1), "BlockRemoved of group -1; the groups are 0 to 1"),
        (stored(1, 1)[0]._replace(block_size=4), "BlockStored of 2 tokens in 1 block of 4; group 1 has blocks of 2"),
        (
            stored(1, 1)[0]._replace(tokens=TOKENS[:4]),
            "BlockStored of 4 tokens in 1 block of 2; group 1 has blocks of 2",
        ),
        (stored(1, 3)[0], "BlockStored behind 'c', which was never stored in any group"),
        (stored(1, 1)[0]._replace(extra_key=7), "BlockStored under extra key 7 behind 'a', which has another"),
        (stored(1, 1)[0]._replace(keys=("a",)), "BlockStored gives the key 'a' to a second prefix"),
        (BlockRemoved(("a",), group=1), "BlockRemoved of 'a', which is not stored in group 1"),
        (
            stored(1, 1)[0]._replace(keys=("k", "k"), tokens=TOKENS[2:6]),
            "BlockStored gives the key 'k' to a second prefix",
        ),
        (Room(1, pool="kv"), "the events leave 2 blocks of pool 'kv' stored, but by free_now only 1 is not free"),
    ],
)
def test_what_contradicts_the_events(fact: Fact, wrong: str) -> None:
    listener = listener_of((FULL, WINDOW), *stored(0, 0, 1), counting=True)
    assert event_consistency(listener, fact) == wrong


def test_a_prefix_may_have_several_keys() -> None:
    other = stored(0, 0)[0]._replace(keys=("x",))
    listener = listener_of((FULL, WINDOW), *stored(0, 0), *stored(1, 0), other, BlockRemoved(("a",)), counting=True)
    assert event_consistency(listener, Hit(TOKENS, None, 2)) is None
    assert event_consistency(listener, BlockRemoved(("a",))) == "BlockRemoved of 'a', which is not stored in group 0"
    listener.apply(BlockRemoved(("a",), group=1))
    assert event_consistency(listener, stored(0, 1)[0]._replace(parent="x", keys=("a",))) is None


def test_a_hit_may_end_within_a_block_that_nothing_is_read_of() -> None:
    fine, chunks = Group("full", 1), Group("chunked", 2, 3)
    events = [BlockStored((TOKENS[:n],), TOKENS[: n - 1] or None, TOKENS[n - 1 : n], 1) for n in (1, 2, 3)]
    listener = listener_of((fine, chunks), *events)
    assert [n for n in range(5) if event_consistency(listener, Hit(TOKENS, None, n)) is None] == [0, 3]


def in_tier(*events: BlockStored) -> list[BlockStored]:
    return [event._replace(medium="cpu") for event in events]


def test_what_a_tier_has_is_no_hit_of_the_pool() -> None:
    listener = listener_of((FULL, WINDOW), *stored(0, 0), *in_tier(*stored(0, 0), *stored(1, 0)))
    assert event_consistency(listener, Hit(TOKENS, None, 0)) is None
    assert "group 1 (window of 3, blocks of 2) lacks" in str(event_consistency(listener, Hit(TOKENS, None, 2)))
    listener.apply(BlockRemoved(("a",), "cpu", 1))
    listener.apply(stored(1, 0)[0])
    assert event_consistency(listener, Hit(TOKENS, None, 2)) is None


def test_a_hit_that_loads_may_need_blocks_of_pool_and_tier() -> None:
    listener = listener_of((FULL, WINDOW), *stored(0, 0, 1, 2), *stored(1, 0), *in_tier(*stored(1, 1)))

    def right(**options: bool) -> list[int]:
        hits = [Hit(TOKENS, None, n, **options) for n in range(0, 8, 2)]
        return [hit.cached for hit in hits if event_consistency(listener, hit) is None]

    assert right() == [2]
    assert right(loads=True) == [2, 4], "no event speaks of the window's block behind 6"
    assert right(loads=True, silent=True) == [2, 4, 6]


def test_a_whole_prompt_that_is_loaded_may_be_hit_but_for_its_last_token() -> None:
    listener = listener_of((FULL,), *in_tier(*stored(0, 0, 1, 2, 3)))
    hits = [Hit(TOKENS, None, n, loads=True) for n in range(8)]
    assert all(event_consistency(listener, hit) is None for hit in hits)


def test_a_tier_may_give_up_what_is_loaded() -> None:
    listener = listener_of((FULL,), *in_tier(*stored(0, 0)), BlockRemoved(("a",), "cpu"))
    load = Fetched(TOKENS[:2], None, "cpu", 0)
    assert event_consistency(listener, load) is None, "it was there when the load was submitted"
    listener.forget(back=False)
    assert event_consistency(listener, load) is not None


def test_a_load_reads_what_is_announced_of_its_group() -> None:
    listener = listener_of((FULL, WINDOW), *in_tier(*stored(0, 0)))
    assert event_consistency(listener, Fetched(TOKENS[:2], None, "cpu", 0)) is None
    wrong = "the block of group 1 behind [1, 2] is loaded from cpu, where no event says that it is"
    assert event_consistency(listener, Fetched(TOKENS[:2], None, "cpu", 1)) == wrong
    assert event_consistency(listener, Fetched(TOKENS[:2], None, "disk", 1)) is None, "which nobody speaks of"


def test_a_tier_has_no_more_blocks_than_can_be_hit_there() -> None:
    listener = listener_of((FULL, WINDOW), *in_tier(*stored(0, 0), *stored(1, 0)))
    assert event_consistency(listener, Room(2, "tier('cpu')", "cpu")) is None
    wrong = "the events leave 2 blocks stored in cpu, but by tier('cpu') only 1 can be hit there"
    assert event_consistency(listener, Room(1, "tier('cpu')", "cpu")) == wrong
    assert event_consistency(listener, Room(0)) is None


def test_a_block_of_a_tier_is_removed_there() -> None:
    listener = listener_of((FULL, WINDOW), *stored(1, 0), *in_tier(*stored(0, 0)))
    assert event_consistency(listener, BlockRemoved(("a",), "cpu")) is None
    wrong = "BlockRemoved of 'a', which is not stored in group 1 of cpu"
    assert event_consistency(listener, BlockRemoved(("a",), "cpu", 1)) == wrong


def test_a_set_may_hear_of_a_removal_again() -> None:
    listener = listener_of((FULL, WINDOW), *stored(0, 0), BlockRemoved(("a",)))
    assert event_consistency(listener, BlockRemoved(("a",))) is None
    assert event_consistency(listener, BlockRemoved(("a",), group=1)) is not None


def test_all_groups_are_cleared() -> None:
    told = [*stored(0, 0, 1), *stored(1, 0, 1)]
    listener = listener_of((FULL, WINDOW), *told, *in_tier(*told), AllBlocksCleared())
    assert event_consistency(listener, Room(0)) is None
    assert event_consistency(listener, Room(0, medium="cpu")) is None
    assert event_consistency(listener, Hit(TOKENS, None, 0)) is None


def test_a_hit_that_loads_has_at_least_what_the_pool_has() -> None:
    listener = listener_of((FULL, WINDOW), *stored(0, 0, 1), *stored(1, 0, 1))
    hits = [Hit(TOKENS, None, n, loads=True, silent=True) for n in range(0, 8, 2)]
    assert [hit.cached for hit in hits if event_consistency(listener, hit) is None] == [4, 6]


def test_a_hit_that_has_waited_has_at_most_what_the_pool_has() -> None:
    listener = listener_of((FULL, WINDOW), *stored(0, 0, 1, 2), *stored(1, 0, 1))
    hits = [Hit(TOKENS, None, n, waited=True) for n in range(8)]
    right = [hit.cached for hit in hits if event_consistency(listener, hit) is None]
    assert right == [0, 1, 2, 3, 4, 5, 7], "the block of the last token may have been loaded as well"


def test_a_load_may_bring_back_a_block_behind_what_the_pool_never_had() -> None:
    behind = BlockStored(("b",), "a", (3, 4), 2, group=1)
    assert "'a', which was never stored in any group" in str(event_consistency(listener_of((FULL, WINDOW)), behind))
    listener, hit = GroupListener((FULL, WINDOW), counting=False, tiers=True), Hit(TOKENS, None, 4)
    assert event_consistency(listener, behind) is None
    listener.apply(behind)
    assert event_consistency(listener, hit) is None, "the window has a block that nobody can place"
    for event in stored(0, 0, 1):
        assert event_consistency(listener, event) is None
        listener.apply(event)
    assert [n for n in (0, 2, 4, 6) if event_consistency(listener, Hit(TOKENS, None, n)) is None] == [4]
    listener.apply(BlockRemoved(("b",), group=1))
    assert event_consistency(listener, hit) is not None


class TieredAndAnnounced(AnnouncingGroups, TieredState):
    """Full attention and a state, with a tier."""


@pytest.mark.parametrize("make", [AnnouncingState, TieredAndAnnounced])
def test_the_events_of_groups_are_looked_at_with_tiers_and_without(make: Callable[..., Any]) -> None:
    judge = GroupedJudge(make(4, 2), "avail")
    assert judge.listening is not None
    assert "event_consistency" not in judge.lacking()
