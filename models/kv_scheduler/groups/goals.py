"""Goals of a kv_scheduler with groups: what its windows and states must have gone through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlockstep.models.core.model import Goal
from kvlockstep.models.requests.groups import progress

if TYPE_CHECKING:
    from kvlockstep.models.kv_scheduler.groups.judge import GroupedSchedulerJudge

GROUP_GOALS = (
    *progress.WINDOW_GOALS,
    Goal("window_slides_in_flight", "a window gives back a block while a batch of its request is in flight", "groups"),
    *progress.STATE_GOALS,
)


def unreachable(judge: GroupedSchedulerJudge) -> set[str]:
    """Returns the goals of groups that do not apply to these groups and traits."""
    traits = judge.traits
    never = progress.unreachable(judge.groups.groups, traits.prefix_cache, traits.drafts > 0)
    if not traits.preempts:
        never.add("resume_behind_window")
    if traits.overlap == 1 or "window_slides" in never:
        # What slides at the next batch slides in front of it.
        never.add("window_slides_in_flight")
    return never
