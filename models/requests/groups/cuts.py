"""Hits that end where a window or a state lacks something, while full attention has more of the prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvlockstep.models.core.model import Goal
from kvlockstep.models.requests.groups.memory import GroupMemory
from kvlockstep.models.requests.request import Request
from kvlockstep.reference.kv_manager.groups.contract import Group, owed

BY_WINDOW = Goal(
    "hit_cut_by_window", "a hit ends where full attention goes on, and a window or a chunk does not", "groups"
)
BY_STATE = Goal("hit_cut_by_state", "a hit ends where full attention goes on, and a state is lacking", "groups")
GOALS = {"window": BY_WINDOW.id, "chunked": BY_WINDOW.id, "state": BY_STATE.id}


def cut_by(kv: GroupMemory, groups: Sequence[Group], request: Request) -> set[str]:
    """Returns the goals that the hit of a request meets, by what stands in the KV memory.

    Content of blocks that the target has freed without naming them free counts as if it could be hit.
    """
    tokens, grid = request.tokens, math.lcm(*(group.block_size for group in groups))
    lengths = range((request.hit // grid + 1) * grid, len(tokens), grid)
    if not lengths:
        return set()
    there = kv.full_blocks()
    blocks = [kv.ends_of(g, request.extra_key, tokens) for g in range(len(groups))]
    met: set[str] = set()
    for length in lengths:
        lacking = {
            group.kind
            for g, group in enumerate(groups)
            if any((g, blocks[g][place]) not in there for place in owed(group, length))
        }
        if "full" in lacking:
            break
        met |= {GOALS[kind] for kind in lacking}
    return met


def unreachable(groups: Sequence[Group], prefix_cache: bool, tiers: bool) -> set[str]:
    """Returns the goals that do not apply. What a pool lacks may come from a tier."""
    kinds = {group.kind for group in groups}
    if "full" not in kinds or tiers or not prefix_cache:
        return set(GOALS.values())
    return set(GOALS.values()) - {GOALS[kind] for kind in kinds & GOALS.keys()}
