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
    Goal("state_forked", "a request with a state is forked", "groups"),
    Goal("one_pool_full", "a refusal is due to one pool while another one has room", "groups"),
    Goal("chunk_cut", "the manager takes fewer tokens than it was asked for", "groups"),
    *in_flight.GROUP_TRANSFER_GOALS,
)


def unreachable(judge: GroupedJudge) -> set[str]:
    """Returns the goals of groups that do not apply to these groups and traits."""
    traits, groups = judge.traits, judge.groups
    never = progress.unreachable(groups.groups, traits.prefix_cache, traits.tokens_per_decode != 1)
    never |= in_flight.unreachable(judge, traits.mixed_hits)
    if not groups.states or not traits.can_fork:
        never.add("state_forked")
    if traits.copies_at_commit:
        # What is published is a copy, so nothing makes a state leave its block.
        never.add("state_moves")
    if not traits.cuts_chunks:
        never.add("chunk_cut")
    return never if len(groups.pools) > 1 else never | {"one_pool_full"}
