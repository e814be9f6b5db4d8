"""Methods of a kv_scheduler with drafts, whose signatures differ from those without."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from kvlockstep.reference.kv_scheduler.batch import Batch


class DraftingTarget(Protocol):
    """Methods that a target with `drafts` has instead of those of the same name."""

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int]) -> Collection[str]:
        """Receives the sampled tokens, and the number of drafts of each request that were right."""


class OverlappedDraftingTarget(DraftingTarget, Protocol):
    """Methods with `drafts` and an `overlap` of more than 1."""

    def schedule(self, accepted: Sequence[Mapping[str, int]]) -> Batch:
        """Decides the next batch; for each batch in flight `accepted` has what `update` will say about its drafts."""


def drafting_target(traits: Any) -> type | None:
    """The protocol whose methods take the place of those in KVSchedulerTarget, if these traits need one."""
    if not traits.drafts:
        return None
    return OverlappedDraftingTarget if traits.overlap > 1 else DraftingTarget
