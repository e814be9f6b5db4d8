"""What a run on a kv_index must have met before it says anything."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kvlockstep.models.core.model import Goal
from kvlockstep.models.kv_index.worker import Worker
from kvlockstep.properties.kv_index.heard import Heard, Message
from kvlockstep.reference.kv_index.contract import IndexTraits
from kvlockstep.reference.kv_index.index import Prefix
from kvlockstep.reference.kv_manager.contract import BlockRemoved, BlockStored

GOALS = (
    Goal("found", "a worker is said to have blocks of a sequence"),
    Goal("partly_found", "a worker has the head of a sequence and not its end"),
    Goal("found_at_two", "two workers have different numbers of blocks of a sequence"),
    Goal("repeated_block", "a sequence is found in which a block is equal to the one before it"),
    Goal("part_of_a_block", "a sequence is asked for that ends inside a block"),
    Goal("keyed", "a sequence under an extra key is found", "extra_key"),
    Goal("two_keys", "a sequence is stored under one extra key and asked for under another", "extra_key"),
    Goal("branch", "a sequence is stored that branches off another"),
    Goal("key_collision", "two workers use one key for different blocks"),
    Goal("removed", "a block is removed"),
    Goal("removed_again", "a block is removed that is not stored", "event_listener"),
    Goal("orphan", "a block is removed and one below it stays"),
    Goal("orphan_found", "an orphan is found again, since its parent is stored again", "orphans"),
    Goal("stored_again", "a block is stored that is stored already"),
    Goal("copy_left", "a copy is removed and another one stays", "event_listener"),
    Goal("behind_the_unknown", "a block is stored behind a parent that is not known"),
    Goal("cleared", "a worker clears its cache"),
    Goal("gap", "an event arrives behind one that was lost"),
    Goal("lost_removal", "a gap hides a removal or a clear"),
    Goal("removed_in_gap", "a removal arrives behind a gap"),
    Goal("cleared_in_gap", "a clear event ends a gap"),
    Goal("after_gap", "the event behind a gap arrives"),
    Goal("old", "an event arrives for the second time", "ignores_old"),
    Goal("late", "a lost event arrives behind its successor", "ignores_old"),
    Goal("left", "a worker with blocks leaves"),
    Goal("came_back", "a worker that has left stores blocks"),
    Goal("resynchronised", "a worker is resynchronised behind a gap", "can_resync"),
    Goal("resynchronised_orphan", "a worker with an orphan is resynchronised", "can_resync"),
    Goal("reloaded", "an index is replaced by one that is fed with its snapshot", "can_snapshot"),
)


def unreachable(traits: IndexTraits) -> set[str]:
    """The goals that an index with these traits cannot meet."""
    declared = {
        "extra_key": traits.extra_key,
        "ignores_old": traits.ignores_old,
        "can_resync": traits.can_resync,
        "can_snapshot": traits.can_snapshot and traits.can_resync,
    }
    missed = {goal.id for goal in GOALS if goal.when in declared and not declared[goal.when]}
    missed.add("removed_again" if traits.event_listener == "counting" else "copy_left")
    if traits.orphans == "dropped":
        missed.add("orphan_found")
    if traits.shared_keys:
        missed.add("key_collision")
    return missed


def notice_store(
    goals_met: Counter[str], cache: Worker, message: Message, copies: Collection[Prefix], workers: Iterable[Worker]
) -> None:
    """Counts what a store means to a worker that had `copies` before it."""
    blocks = message.prefixes
    goals_met["stored_again"] += any(block in copies for block in blocks)
    goals_met["branch"] += any(_branches(blocks[0], block) for block in copies)
    goals_met["came_back"] += cache.lives > 0
    goals_met["key_collision"] += any(_collide(message, other.sent[-1]) for other in workers if other.sent)


def notice_removal(goals_met: Counter[str], cache: Worker, message: Message, copies: Collection[Prefix]) -> None:
    """Counts what a removal means to a worker that had `copies` before it."""
    removed = [block for block in message.prefixes if block in copies]
    gone = [block for block in removed if block not in cache.copies]
    goals_met["removed"] += bool(removed)
    goals_met["removed_again"] += len(removed) < len(message.prefixes)
    goals_met["copy_left"] += len(gone) < len(removed)
    goals_met["orphan"] += any(is_above(block, left) for block in gone for left in cache.copies)


def notice_arrival(
    goals_met: Counter[str], cache: Worker, heard: Heard, number: int, message: Message, unknown_parent: bool
) -> None:
    """Counts what it means that an event arrives, before `heard` takes it in."""
    missed = heard.misses(number)
    hidden = cache.sent[(heard.last or 0) + 1 : number] if missed else []
    goals_met["gap"] += missed
    goals_met["lost_removal"] += any(not isinstance(message.event, BlockStored) for message in hidden)
    goals_met["after_gap"] += heard.gap and not missed
    goals_met["removed_in_gap"] += heard.gap and isinstance(message.event, BlockRemoved)
    goals_met["behind_the_unknown"] += unknown_parent


def notice_answers(
    goals_met: Counter[str],
    tokens: Sequence[int],
    extra_key: Any,
    answers: Mapping[Any, int],
    others: Mapping[Any, Mapping[Any, int]],
    block_size: int,
) -> None:
    """Counts what the answers to a question mean, beside those to `others`."""
    most, whole = max(answers.values(), default=0), len(tokens) // block_size
    pieces = [tokens[i : i + block_size] for i in range(0, most * block_size, block_size)]
    same = [found for (asked, key), found in others.items() if asked == tuple(tokens) and key != extra_key]
    goals_met["found"] += most > 0
    goals_met["partly_found"] += 0 < most < whole
    goals_met["found_at_two"] += len({*answers.values()}) > 1
    goals_met["repeated_block"] += any(a == b for a, b in itertools.pairwise(pieces))
    goals_met["part_of_a_block"] += most > 0 and len(tokens) % block_size > 0
    goals_met["keyed"] += most > 0 and extra_key is not None
    goals_met["two_keys"] += not most and any(same)


def is_above(block: Prefix, other: Prefix) -> bool:
    """Tells whether the first block lies on the path to the other."""
    (key, tokens), (other_key, longer) = block, other
    return key == other_key and len(tokens) < len(longer) and longer[: len(tokens)] == tokens


def _branches(block: Prefix, other: Prefix) -> bool:
    """Whether the two begin with the same token, and neither lies on the path to the other."""
    (key, tokens), (other_key, longer) = block, other
    apart = tokens[: len(longer)] != longer[: len(tokens)]
    return key == other_key and tokens[0] == longer[0] and apart


def _collide(message: Message, other: Message) -> bool:
    if not isinstance(message.event, BlockStored) or not isinstance(other.event, BlockStored):
        return False
    theirs = dict(zip(other.event.keys, other.prefixes, strict=True))
    mine = zip(message.event.keys, message.prefixes, strict=True)
    return any(theirs.get(key, block) != block for key, block in mine)
