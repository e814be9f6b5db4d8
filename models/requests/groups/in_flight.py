"""What a judge of groups has to know of the transfers in flight, pool by pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from kvlockstep.models.core.model import Goal
from kvlockstep.models.requests.groups.content import Place
from kvlockstep.models.requests.groups.places import GroupPlaces
from kvlockstep.models.requests.groups.progress import Progress
from kvlockstep.models.requests.groups.session import GroupSession
from kvlockstep.models.requests.groups.settled import Occupied
from kvlockstep.models.requests.transfers.places import Block
from kvlockstep.models.requests.transfers.transfers import Transfers

GROUP_TRANSFER_GOALS = (
    Goal("window_slides_in_store", "a window slides off a block while it is being stored", "groups_and_tiers"),
    Goal("loaded_groups", "a hit has blocks of several groups that were loaded", "groups_and_tiers"),
    Goal("loaded_state", "a state is loaded together with blocks of attention", "groups_and_tiers"),
    Goal("loaded_for_one", "a hit that one group cuts on the device is served from a tier", "groups_and_tiers"),
)


class TieredGroupSession(GroupSession, Protocol):
    """A judge of groups whose target may have tiers; `transfers` is None if it has not."""

    adapter: Any
    places: GroupPlaces
    progress: Progress
    transfers: Transfers | None


def limbo_of(session: TieredGroupSession, occupied: Mapping[str, Occupied]) -> dict[str, int]:
    """The number of blocks in limbo in each pool: nobody holds them, and they are not available yet."""
    if session.traits.late_release:
        return session.groups.counts(session.adapter.limbo)
    return count(session, session.transfers.unheard(held_of(session, occupied)) if session.transfers else ())


def count(session: TieredGroupSession, blocks: Collection[Block]) -> dict[str, int]:
    """How many of these blocks are in each pool."""
    if not blocks:
        return dict.fromkeys(session.groups.pools, 0)
    found = Counter(session.places.in_pool(block).pool for block in blocks)
    return {pool: found[pool] for pool in session.groups.pools}


def blocks_of(session: TieredGroupSession, numbers: Mapping[str, Iterable[int]]) -> list[Block]:
    """The blocks of all pools, from their numbers in each."""
    return [block for pool, of_pool in numbers.items() for block in session.places.blocks(pool, of_pool)]


def held_of(session: TieredGroupSession, occupied: Mapping[str, Occupied]) -> set[Block]:
    """The blocks that requests are known to hold."""
    return set(blocks_of(session, {pool: found.blocks for pool, found in occupied.items()}))


def poison(session: TieredGroupSession, free: Mapping[str, Iterable[int]]) -> None:
    """Spoils the content of the free blocks of each pool, but for those that a transfer still reads."""
    for pool, blocks in free.items():
        if session.transfers:
            spoilt = session.transfers.unpoisoned(blocks_of(session, {pool: blocks}))
            blocks = [session.places.in_pool(block).block for block in spoilt]
        session.kv.poison(pool, blocks)


def reset(session: TieredGroupSession) -> None:
    """Forgets everything in the pools and tiers, but for what a transfer still reads."""
    known = [session.places.block(*place) for place in session.kv.known_blocks()]
    kept = set(known).difference(session.transfers.unpoisoned(known)) if session.transfers else set()
    session.kv.reset({session.places.in_pool(block) for block in kept})
    if session.transfers:
        session.transfers.reset()


def note_loaded(session: TieredGroupSession, hit: Mapping[int, Sequence[Place]], loaded: set[Block]) -> None:
    """Counts the goals of a request that starts: the blocks of its hit in each group, and what was loaded for it."""
    met, states = session.goals_met, session.groups.states
    found = {g: sum(session.places.block(*place) in loaded for place in places) for g, places in hit.items()}
    of = {g for g, blocks in found.items() if blocks}
    met["part_loaded"] += 0 < sum(found.values()) < sum(map(len, hit.values()))
    met["loaded_groups"] += len(of) > 1
    met["loaded_state"] += not of.isdisjoint(states) and not of.issubset(states)
    met["loaded_for_one"] += 0 < len(of) < len(hit)


def note_slid(session: TieredGroupSession, sliding: Mapping[str, set[Place]]) -> None:
    """Counts a window that has left a block while a store reads it; `sliding` are the blocks left, by request."""
    if session.transfers and sliding:
        # Whoever holds the block by now may have written it, and the store reads that.
        held = session.progress.held
        left = {session.places.block(*at) for places in sliding.values() for at in places if at[1] not in held[at[0]]}
        session.goals_met["window_slides_in_store"] += not left.isdisjoint(session.transfers.under_store())


def unreachable(session: TieredGroupSession, mixed_hits: bool) -> set[str]:
    """Returns the goals of transfers that these groups cannot reach: by their kinds, and by what was stored so far."""
    groups, stored = session.groups, session.places.in_tiers
    # Where SGLang cannot tell what is held, a table loses what the pool takes, which is nothing that a store reads.
    slides = any(groups.groups[g].kind in ("window", "chunked") for g in stored - groups.untold)
    never = set() if slides and session.transfers and "store" in session.transfers.apart else {"window_slides_in_store"}
    never |= {"loaded_state"} if stored.isdisjoint(groups.states) or stored.issubset(groups.states) else set()
    never |= set() if len(stored) > 1 else {"loaded_groups"}
    return never if len(groups.groups) > 1 and mixed_hits else never | {"loaded_for_one"}
