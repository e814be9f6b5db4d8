"""Faults of kv_scheduler: loads that fail, in front of a batch or between two."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_scheduler.caches_in_tier import CachesInTier
from kvlockstep.impl.variants.failing_loads import CountsWrittenBlocks, EndsOnFailure, LoadsInside
from kvlockstep.reference.kv_scheduler.tiered import Load


@fault("sched-own-load-kept", law="ending", seen=("vllm#7577",))
class OwnLoadKept(CachesInTier, LoadsInside):
    """A request goes on behind what the load of its batch could not bring."""

    def _rewind(self, load: Load) -> None:
        pass


@fault("sched-own-load-published", law="failure_visible", seen=("mutant",))
class OwnLoadPublished(CachesInTier, LoadsInside):
    """Blocks of a failed load stay published if their request is aborted before the batch is back."""

    def _end_load(self, load: Load, ok: bool) -> None:
        super()._end_load(load, ok or all(job.rid != load.rid for job in self._running))


@fault("sched-partial-load-long", law="failure_visible", seen=("mutant",))
class PartialLoadLong(CachesInTier, CountsWrittenBlocks):
    """Of a load that failed one block more is kept than was written."""

    def _publish(self, load: Load, written: int) -> None:
        super()._publish(load, written + 1)


@fault("sched-failed-load-untold", law="ending", seen=("mutant",))
class FailedLoadUntold(CachesInTier, EndsOnFailure):
    """A request ends with its load, and nobody is told."""

    def poll(self) -> Collection[str]:  # type: ignore[override]
        self._told: Any = super().poll()
        return []
