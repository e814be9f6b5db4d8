"""The goals of kv_manager that a run has not met."""

from __future__ import annotations

from typing import Any

from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.requests.transfers.goals import FAILED, MOVED, RESET, STORED

WITH_EVENTS = {"announced_hit", "announced_removal"}


def missed(reach: Any) -> set[str]:
    """The goals of a manager without groups that a run did not meet."""
    of_tiers = {goal.when for goal in (*STORED, *FAILED, *MOVED, *RESET)}
    apart = {"groups", "groups_and_tiers", "events_of_tiers", "waits_for_moves", "loses", *of_tiers}
    return {goal.id for goal in KVManagerModel.goals if not reach[goal.id] and goal.when not in apart}
