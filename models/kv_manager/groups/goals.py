"""Goals of a kv_manager with groups: what its windows, buffers, states and pools must have gone through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvlockstep.models.core.model import Goal
from kvlockstep.models.requests.groups import in_flight, progress
from kvlockstep.models.requests.groups.answers import Table
from kvlockstep.models.requests.request import Request
from kvlockstep.reference.kv_manager.groups.contract import needed

if TYPE_CHECKING:
    from kvlockstep.models.kv_manager.groups.judge import GroupedJudge

ROLLING_GOALS = (
    Goal("rolls", "a token takes the slot of the one that it pushes out of a rolling group", "groups"),
    Goal("rolls_over_read", "a chunk writes over what its first tokens read in a rolling group", "groups"),
    Goal("rolls_past", "a chunk is longer than a rolling group, which keeps the end of it", "groups"),
)
GROUP_GOALS = (
    *progress.WINDOW_GOALS,
    *ROLLING_GOALS,
    *progress.STATE_GOALS,
    Goal(
        "state_in_place_across",
        "a state is written over where it was read, from one block of its grid to a next one",
        "groups",
    ),
    Goal("state_forked", "a request with a state is forked", "groups"),
    *(Goal(f"{pool}_pool_full", f"a refusal is due to the {pool} pool alone", "groups") for pool in progress.POOLS),
    *progress.EVICTION_GOALS,
    Goal("chunk_cut", "the manager takes fewer tokens than it was asked for", "groups"),
    *in_flight.GROUP_TRANSFER_GOALS,
)


def unreachable(judge: GroupedJudge) -> set[str]:
    """Returns the goals of groups that do not apply to these groups and traits."""
    traits, groups = judge.traits, judge.groups
    drafts, tiers = traits.tokens_per_decode != 1, judge.transfers is not None
    never = progress.unreachable(groups.groups, traits.prefix_cache, drafts, tiers, traits.max_length)
    never |= judge.progress.unseen(groups.untold, groups.shows_free)
    never |= in_flight.unreachable(judge, traits.mixed_hits)
    longest = max((groups.groups[g].reach for g in groups.rolling), default=None)
    if longest is None or (traits.max_length is not None and traits.max_length <= longest):
        never |= {goal.id for goal in ROLLING_GOALS}
    if not traits.chunk:
        never.add("rolls_over_read")
    if not groups.states or not traits.can_fork:
        never.add("state_forked")
    if traits.copies_at_commit:
        # What is published is a copy, so nothing makes a state leave its block.
        never.add("state_moves")
    if not traits.cuts_chunks:
        never.add("chunk_cut")
    return never if len(groups.pools) > 1 else never | {"one_pool_full"}


def notice_rolling(judge: GroupedJudge, request: Request, tables: Mapping[int, Table]) -> None:
    """Counts what the next tokens of a request do in its rolling groups; nothing is written yet."""
    stop, met = request.computed + request.pending, judge.goals_met
    for g in judge.groups.rolling:
        group, table = judge.groups.groups[g], tables[g]
        reads = {table[p] for p in needed(group, request.computed, request.computed)}
        writes = set(table[request.computed : stop]) - {None}
        met["rolls"] += request.computed >= group.reach and bool(writes)
        met["rolls_over_read"] += not reads.isdisjoint(writes)
        met["rolls_past"] += request.pending > group.reach and len(writes) < request.pending
