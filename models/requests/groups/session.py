"""What a judge of groups has, whichever contract it judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kvlockstep.models.requests.adapter import not_checked
from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.groups.answers import GroupQuestions
from kvlockstep.models.requests.groups.memory import GroupMemory
from kvlockstep.models.requests.groups.settled import Settled
from kvlockstep.models.requests.listening import Listening
from kvlockstep.models.requests.transfers.transfers import Transfers
from kvlockstep.properties.kv_manager.group_listener import GroupListener
from kvlockstep.properties.kv_manager.groups import one_group, state_soundness, window_freed
from kvlockstep.properties.kv_manager.listener import Room
from kvlockstep.properties.law import Law


class GroupSession(Protocol):
    """`groups` asks the target, `kv` is the KV memory. `seen` are the blocks of each pool that were ever held.

    `settled` is what the last settling found. `reading` are the laws on what is read from a target with transfers.
    """

    adapter: Any
    traits: Any
    checks: Checks
    kv: GroupMemory
    seen: dict[str, set[int]]
    settled: Settled
    goals_met: Counter[str]
    transfers: Transfers | None
    listening: Listening | None

    @property
    def reading(self) -> Sequence[Law[[Any]]]: ...
    @property
    def groups(self) -> GroupQuestions: ...


def named(session: GroupSession, g: int) -> str:
    """A group in words: group 1 (window of 3, blocks of 2)."""
    return session.groups.names[g]


def of_pool(session: GroupSession, pool: str) -> str | None:
    """What a message on a pool begins with: nothing if there is only one."""
    return f"pool {pool}:" if len(session.groups.pools) > 1 else None


def listening_to_groups(session: GroupSession) -> Listening | None:
    """What takes in the events of a target with groups; None if it sends none."""
    kind, tiers = session.traits.event_listener, bool(session.traits.tiers)
    if not kind:
        return None
    listener = GroupListener(session.groups.groups, kind == "counting", tiers)
    return Listening(session.adapter, listener, session.checks, session.goals_met, session.transfers)


def rooms(session: GroupSession, free: Mapping[str, int], said: str) -> list[Room]:
    """The blocks of each pool that are not free, by the method that says how many are."""
    pools = session.groups.pools
    return [Room(n - free[pool], said, pool=pool if len(pools) > 1 else None) for pool, n in pools.items()]


def lacking(laws: Any, session: GroupSession) -> dict[str, str]:
    """Which of a contract's `laws`, the module that declares them, are not checked, each with the reason."""
    groups = session.groups
    found = not_checked(laws.LAWS, session.traits, groups.shows_free)
    if not groups.shows_free:
        found[laws.eviction_safety.id] = "free_slots returns None"
    kinds = {group.kind for group in groups.groups}
    if "state" not in kinds:
        found[state_soundness.id] = "no group is a state"
    if not kinds & {"window", "chunked"}:
        found[window_freed.id] = "no group is a window"
    if len(groups.groups) == len(groups.pools):
        found[one_group.id] = "no two groups share a pool"
    return found
