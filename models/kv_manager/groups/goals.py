"""Goals of a kv_manager with groups: what its windows, states and pools must have gone through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlockstep.models.core.model import Goal
from kvlockstep.models.requests.groups import in_flight, progress

if TYPE_CHECKING:
    from kvlockstep.models.kv_manager.groups.judge import GroupedJudge

GROUP_GOALS = (
    *progress.WINDOW_GOALS,
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
    if not groups.states or not traits.can_fork:
        never.add("state_forked")
    if traits.copies_at_commit:
        # What is published is a copy, so nothing makes a state leave its block.
        never.add("state_moves")
    if not traits.cuts_chunks:
        never.add("chunk_cut")
    # Then every chunk begins where a state can be hit, or none ends beyond.
    on_grid = all(traits.chunk_align % groups.groups[g].block_size == 0 for g in groups.states)
    on_grid = on_grid or progress.within_one_block(groups.groups, traits.max_length)
    if on_grid or not traits.chunk or traits.cuts_chunks:
        never.add("state_in_place_across")
    pools = len(groups.pools)
    return never | {f"{pool}_pool_full" for pool in progress.POOLS[pools if pools > 1 else 0 :]}
