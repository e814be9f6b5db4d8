"""Schedulers with groups and tiers that keep the contract in a way of their own. No law may blame them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvlockstep.impl.kv_scheduler.checkpointed import CheckpointedManager
from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.impl.variants import tiers
from kvlockstep.impl.variants.failing_loads import LoadsInside
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.grouped import FullAndWindow, StatePool
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler
from kvlockstep.reference.kv_scheduler.tiered import Load
from kvlockstep.reference.kv_scheduler.tiered_groups import (
    TieredGroups,
    TieredPools,
    TieredState,
    TieredStates,
    TieredWindow,
    TieredWindows,
)


class LoadsByGroup(TieredGroups):
    """Loads the blocks of each group in a transfer of its own, and starts a request when all have ended."""

    def _begin(self, load: Load) -> None:
        parts = [[i for i, key in enumerate(load.keys) if key[0] == g] for g in range(len(self.groups))]
        for part in filter(None, parts):
            keys, units, blocks = ([of[i] for i in part] for of in (load.keys, load.units, load.blocks))
            # What the pool has is kept up to the end of the last part.
            for block in load.hit:
                self._hold(block)
            super()._begin(Load(load.rid, keys, units, blocks, list(load.hit)))
        for block in load.hit:
            self._drop(block)


class LoadsStatesApart(StatePool, LoadsByGroup):
    """Full attention, a window and states, each loaded apart."""


class HearsGroupsAtOnce(tiers.HearsAtOnce, TieredWindow):
    """Takes in the end of a transfer when it is told, and waits for no poll."""


class OverlapsWithTieredWindow(FullAndWindow, TieredGroups, OverlapScheduler):
    """A window and a tier under a scheduler with a batch in flight; the device orders loads behind it."""

    ordered = True

    def schedule(self, accepted: Sequence[Mapping[str, int]] = ()) -> Batch:
        return OverlapScheduler.schedule(self, accepted)


class LoadsGroupsInside(TieredGroups, LoadsInside):
    """Loads in front of the batch that needs it, which waits; if that fails, the request begins again."""

    def _start(self, job: Job, left: int) -> int | None:
        if any(load.rid == job.rid for load in self._loads.values()):
            return None
        if not self._load(job):
            return KVScheduler._start(self, job, left)
        # Nobody else shares what is loaded before the batch is back.
        load = next(load for load in self._loads.values() if load.rid == job.rid)
        for key, block in zip(load.keys, load.blocks, strict=True):
            self._publish_loaded(key, block)
        cached = KVScheduler._start(self, job, left)
        for key, (pool, block) in zip(load.keys, load.blocks, strict=True):
            del self._kv._pools[pool].cached[key]
            del self._kv._pools[pool].key_of[block]
        return cached

    def _rewind(self, load: Load) -> None:
        for job in self._running:
            if job.rid == load.rid:
                self._kv.finish(job.rid)
                self._kv._live[job.rid] = self._kv._hit(job.tokens, job.extra_key, 0)
                job.computed = 0
                self._launched = [item for item in self._launched if item.rid != job.rid]


class LoadsStatesInside(StatePool, LoadsGroupsInside):
    """Full attention, a window and states, loaded inside."""


class DropsStoresOfGroups(tiers.DropsEveryThirdStore, TieredState):
    """A tier that has no time for every third store, so that it serves some groups of a prefix and not all."""


class LosesUnits(TieredWindow):
    """A tier that may lose what it holds; what could not be loaded is forgotten."""

    loses = True


class StoresCheckpoints(TieredStates):
    """Stores a checkpoint behind the batch without drafts that comes to it, before it hears of that batch."""

    manager = CheckpointedManager

    def _states(self, blocks: int) -> int:
        """A request runs in one block for each token that may be the last, beside a checkpoint and what is cached."""
        return max(self.drafts + 3, blocks // 2) + 1

    def schedule(self, *accepted: Sequence[Mapping[str, int]]) -> Batch:
        batch = super().schedule(*accepted)
        for item in batch.items:
            if not item.drafts:
                self._store_checkpoints(next(job for job in self._running if job.rid == item.rid), item.start + item.n)
        return batch

    def _store_checkpoints(self, job: Job, end: int) -> None:
        for g, group in enumerate(self.groups):
            if group.kind != "state" or end % group.block_size or end > len(job.tokens):
                continue
            checkpoint = self._kv.run_of(g, self._kv._live[job.rid]).checkpoint
            key = self._kv._key(g, job.tokens[:end], job.extra_key, end // group.block_size - 1)
            if checkpoint is not None and not self._tier.knows(key):
                self._store(key, self._block(g, checkpoint))


GROUP_TRANSFER_VARIANTS = {
    "stores-checkpoints": StoresCheckpoints,
    "tiered-pools": TieredPools,
    "tiered-windows": TieredWindows,
    "loads-states-apart": LoadsStatesApart,
    "hears-groups-at-once": HearsGroupsAtOnce,
    "overlaps-with-tiered-window": OverlapsWithTieredWindow,
    "loads-states-inside": LoadsStatesInside,
    "loses-units": LosesUnits,
    "drops-stores-of-groups": DropsStoresOfGroups,
}
