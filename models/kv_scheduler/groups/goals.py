"""Goals of a kv_scheduler with groups: what its windows and states must have gone through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlockstep.models.core.model import Goal
from kvlockstep.models.requests.groups import in_flight, progress

if TYPE_CHECKING:
    from kvlockstep.models.kv_scheduler.groups.judge import GroupedSchedulerJudge

GROUP_GOALS = (
    *progress.WINDOW_GOALS,
    Goal("window_slides_in_flight", "a window gives back a block while a batch of its request is in flight", "groups"),
    *progress.STATE_GOALS,
    *progress.EVICTION_GOALS,
    *in_flight.GROUP_TRANSFER_GOALS,
    Goal("sent_behind_window", "a request ends whose window has left blocks, and is stored", "groups_durable"),
)


def unreachable(judge: GroupedSchedulerJudge) -> set[str]:
    """Returns the goals of groups that do not apply to these groups and traits."""
    traits = judge.traits
    groups, tiers = judge.groups, judge.transfers is not None
    never = progress.unreachable(groups.groups, traits.prefix_cache, traits.drafts > 0, tiers, traits.max_length)
    never |= judge.progress.unseen(groups.untold, groups.shows_free)
    never |= in_flight.unreachable(judge, traits.mixed_hits)
    if not traits.preempts:
        never.add("resume_behind_window")
    if traits.overlap == 1 or "window_slides" in never:
        # What slides at the next batch slides in front of it.
        never.add("window_slides_in_flight")
    if "window_slides" in never:
        never.add("sent_behind_window")
    if traits.states_in_place:
        never.add("state_moves")
    return never
