"""Goals of a kv_scheduler with groups: what its windows and states must have gone through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kvlockstep.models.core.model import Goal
from kvlockstep.models.requests.groups import progress
from kvlockstep.models.requests.groups.memory import Place
from kvlockstep.models.requests.transfers.places import Block

if TYPE_CHECKING:
    from kvlockstep.models.kv_scheduler.groups.judge import GroupedSchedulerJudge

GROUP_GOALS = (
    *progress.WINDOW_GOALS,
    Goal("window_slides_in_flight", "a window gives back a block while a batch of its request is in flight", "groups"),
    *progress.STATE_GOALS,
    Goal("window_slides_in_store", "a window slides off a block while it is being stored", "groups_and_tiers"),
    Goal("loaded_groups", "a hit has blocks of several groups that were loaded", "groups_and_tiers"),
    Goal("loaded_state", "a state is loaded together with blocks of attention", "groups_and_tiers"),
    Goal("sent_behind_window", "a request ends whose window has left blocks, and is stored", "groups_durable"),
    Goal("loaded_for_one", "a hit that one group cuts on the device is served from a tier", "groups_and_tiers"),
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
    if "window_slides" in never:
        never |= {"window_slides_in_store", "sent_behind_window"}
    if not judge.groups.states:
        never.add("loaded_state")
    if traits.states_in_place:
        never.add("state_moves")
    if len(judge.groups.groups) == 1:
        never.add("loaded_groups")
    if len(judge.groups.groups) == 1 or not traits.mixed_hits:
        never.add("loaded_for_one")
    return never


def note_loaded(judge: GroupedSchedulerJudge, hit: Mapping[int, Sequence[Place]], loaded: set[Block]) -> None:
    """Counts the goals of a request that starts: the blocks of its hit in each group, and what was loaded for it."""
    met, states = judge.goals_met, judge.groups.states
    found = {g: sum(judge.places.block(*place) in loaded for place in places) for g, places in hit.items()}
    of = {g for g, blocks in found.items() if blocks}
    met["part_loaded"] += 0 < sum(found.values()) < sum(map(len, hit.values()))
    met["loaded_groups"] += len(of) > 1
    met["loaded_state"] += not of.isdisjoint(states) and not of.issubset(states)
    met["loaded_for_one"] += 0 < len(of) < len(hit)
