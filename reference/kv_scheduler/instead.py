"""Methods of a kv_scheduler whose signatures its traits change."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
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


class PartialLoadsTarget(Protocol):
    """Methods that a target with `partial_loads` has instead of those of the same name."""

    def complete(self, id: Hashable, ok: bool, written: int) -> None:
        """The transfer has ended; the first `written` of its pairs are there, all of them if `ok`."""


def target_instead(traits: Any) -> type | None:
    """The protocol whose methods take the place of those in KVSchedulerTarget, if these traits need one."""
    drafting = OverlappedDraftingTarget if traits.overlap > 1 else DraftingTarget
    needed = [*([drafting] if traits.drafts else []), *([PartialLoadsTarget] if traits.partial_loads else [])]
    return type("Instead", tuple(needed), {}) if len(needed) > 1 else next(iter(needed), None)
