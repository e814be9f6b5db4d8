"""What a judge of groups has, whichever contract it judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.groups.answers import GroupQuestions
from kvlockstep.models.requests.groups.memory import GroupMemory
from kvlockstep.properties.law import Law


class GroupSession(Protocol):
    """`groups` asks the target, `kv` is the KV memory. `seen` are the blocks of each pool that were ever held.

    `reading` are the laws of transfers on what is read, if the target has any.
    """

    traits: Any
    checks: Checks
    kv: GroupMemory
    seen: dict[str, set[int]]
    goals_met: Counter[str]

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
