"""Methods of a kv_scheduler whose signatures its traits change."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from kvlockstep.reference.kv_manager.groups.contract import one_full
from kvlockstep.reference.kv_scheduler.batch import Batch


class DraftingTarget(Protocol):
    """Methods that a target with `drafts` has instead of those of the same name."""

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int]) -> Collection[str]:
        """Receives the sampled tokens, and the number of drafts of each request that were right."""


class OverlappedDraftingTarget(DraftingTarget, Protocol):
    """Methods with `drafts` and an `overlap` of more than 1."""

    def schedule(self, accepted: Sequence[Mapping[str, int]]) -> Batch:
        """Decides the next batch; for each batch in flight `accepted` has what `update` will say about its drafts."""


class PartialLoadsTarget(Protocol):
    """Methods that a target with `partial_loads` has instead of those of the same name."""

    def complete(self, id: Hashable, ok: bool, written: int) -> None:
        """The transfer has ended; the first `written` of its pairs are there, all of them if `ok`."""


class GroupedSchedulerTarget(Protocol):
    """Methods of a kv_scheduler with groups. Blocks are counted and named, not slots; a pool has its own numbers."""

    def slots(self, rid: str, group: int) -> Iterable[int | None]:
        """Returns the slots of positions 0, 1, ... in an attention group, None where it has none (any more); none if
        the request waits. Slot = block * block_size of the group + offset. Changes nothing.
        """

    def held(self, rid: str, group: int) -> Iterable[int] | None:
        """Returns the blocks of a group that the request keeps from being taken, alone or with others. None if you
        cannot tell: then it may be any from what must be readable to what `slots` names. Changes nothing.
        """


class PooledSchedulerTarget(GroupedSchedulerTarget, Protocol):
    """Methods of a kv_scheduler whose groups have several pools."""

    def avail(self, pool: str) -> int:
        """Returns the number of free and evictable blocks of a pool. Changes nothing."""

    def free_slots(self, pool: str) -> Iterable[int] | None:
        """Returns the blocks of a pool that are free and can never be hit again, or None."""


class LatePooledSchedulerTarget(PooledSchedulerTarget, Protocol):
    """Methods with several pools and `late_release`."""

    def limbo(self, pool: str) -> int:
        """Returns the blocks of a pool that no live request holds and that are not available yet. Changes nothing."""


def target_instead(traits: Any) -> type | None:
    """The protocol whose methods take the place of those in KVSchedulerTarget, if these traits need one."""
    needed: list[type] = []
    if traits.drafts:
        needed.append(OverlappedDraftingTarget if traits.overlap > 1 else DraftingTarget)
    if traits.partial_loads:
        needed.append(PartialLoadsTarget)
    if not one_full(traits.groups):
        pooled = LatePooledSchedulerTarget if traits.late_release else PooledSchedulerTarget
        needed.append(pooled if traits.pools else GroupedSchedulerTarget)
    return type("Instead", tuple(needed), {}) if len(needed) > 1 else next(iter(needed), None)
