"""Faults of kv_scheduler: loads that end, fail, or lose their request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_scheduler.caches_in_tier import CachesInTier
from kvlockstep.impl.faulty.tiers import KeepsReaders
from kvlockstep.reference.kv_manager.manager import Key
from kvlockstep.reference.kv_manager.tier import Tier
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.tiered import Load, TieredScheduler


@fault("sched-abort-frees-target", law="target_owned", seen=("vllm#32255",))
class AbortFreesTarget(CachesInTier):
    """An abort frees the blocks that a running load still writes."""

    def abort(self, rid: str) -> None:
        for id, load in list(self._loads.items()):
            if load.rid == rid:
                self._end_load(self._loads.pop(id), False)
        super().abort(rid)

    def poll(self) -> None:
        known = {*self._stores, *self._loads}
        self._completed = [(id, ok) for id, ok in self._completed if id in known]
        super().poll()


@fault("sched-abort-misses-end", law="progress", seen=("vllm#32255",))
class AbortMissesEnd(CachesInTier):
    """An abort waits for the end of a load that has already ended, and its blocks are never released."""

    def abort(self, rid: str) -> None:
        self._completed = [(id, ok) for id, ok in self._completed if id in self._stores or self._loads[id].rid != rid]
        super().abort(rid)


@fault("sched-torn-load-cached", law="failure_visible", seen=("vllm#7577",))
class TornLoadCached(CachesInTier):
    """A load that failed on its way counts in full."""

    def _end_load(self, load: Load, ok: bool) -> None:
        super()._end_load(load, True)


@fault("sched-load-never-done", law="progress", seen=("dynamo#3730",))
class LoadNeverDone(TieredScheduler):
    """The end of a load of several blocks is never noticed, so its request waits for good."""

    def poll(self) -> None:
        self._completed = [
            (id, ok) for id, ok in self._completed if id in self._stores or len(self._loads[id].units) == 1
        ]
        super().poll()


@fault("sched-unit-lost", law="tier_accounting", seen=("sglang#13501",))
class UnitLost(CachesInTier):
    """The unit of a page that could not be loaded is forgotten with its key, and is never free again."""

    class tier_type(Tier):
        def end_load(self, key: Key, unit: int, ok: bool) -> None:
            self._readers[unit] -= 1
            if not ok:
                self._cached.pop(key, None)


@fault("sched-reader-left", law="quiescence", seen=("shape: refcount-leak",))
class ReaderLeft(CachesInTier):
    """A load that failed stays a reader of its units, which are never evicted again."""

    tier_type = KeepsReaders


@fault("sched-promotes-again", law="transfer_progress", seen=("vllm#49902",))
class PromotesAgain(TieredScheduler):
    """Loaded blocks are released before their request is looked up again, so they are loaded forever."""

    def _end_load(self, load: Load, ok: bool) -> None:
        for key, unit in zip(load.keys, load.units, strict=True):
            self._tier.end_load(key, unit, ok)
        for block in (*load.hit, *load.blocks):
            self._kv._drop(block)


@fault("sched-failed-load-runs", law="one_queue", seen=("xinfer#405",))
class FailedLoadRuns(CachesInTier):
    """A request whose load failed is listed as running although it waits."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._failed: set[str] = set()

    def _end_load(self, load: Load, ok: bool) -> None:
        super()._end_load(load, ok)
        if not ok:
            self._failed.add(load.rid)

    def queues(self) -> Mapping[str, Sequence[str]]:
        queues = dict(super().queues())
        failed = [rid for rid in queues["waiting"] if rid in self._failed]
        return {**queues, "running": [*queues["running"], *failed]}

    def schedule(self) -> Batch:
        self._failed.clear()
        return super().schedule()


@fault("sched-counts-wrong-level", law="accounting", seen=("TensorRT-LLM#12834",))
class CountsWrongLevel(TieredScheduler):
    """The pool counts a block by its level after the load, which has changed, and so calls it free."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._miscounted = 0

    def _end_load(self, load: Load, ok: bool) -> None:
        super()._end_load(load, ok)
        self._miscounted += len(load.blocks) if ok else 0

    def avail(self) -> int:
        return super().avail() + self._miscounted * self.block_size
