"""kv_schedulers that are right and do something unusual: what the suite must not blame."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.impl.variants import tiers
from kvlockstep.impl.variants.chunks import CHUNK_VARIANTS
from kvlockstep.impl.variants.failing_loads import CountsWrittenBlocks, EndsOnFailure, LoadsInside
from kvlockstep.impl.variants.group_peers import GROUP_PEER_VARIANTS
from kvlockstep.impl.variants.group_transfers import GROUP_TRANSFER_VARIANTS
from kvlockstep.impl.variants.late_release import LATE_VARIANTS
from kvlockstep.impl.variants.moves import MOVE_VARIANTS
from kvlockstep.impl.variants.overtaking import HoldsLoaded, LetsOvertake
from kvlockstep.impl.variants.peers import SendsBeforePreemption
from kvlockstep.impl.variants.scheduler_groups import GROUP_VARIANTS
from kvlockstep.reference.kv_manager.manager import Key, KVManager
from kvlockstep.reference.kv_manager.tier import Block, Store
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.grouped import StatePool
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler
from kvlockstep.reference.kv_scheduler.tiered_groups import TieredGroups


class DropsEveryThirdStore(tiers.DropsEveryThirdStore, TieredScheduler):
    """A tier that has no time for every third store."""


class HearsAtOnce(tiers.HearsAtOnce, TieredScheduler):
    """Takes in the end of a transfer when it is told, and waits for no poll."""


class NotesEvictions(KVManager):
    """A manager that remembers what it has evicted."""

    def reset(self) -> None:
        super().reset()
        self.evicted: list[tuple[Key, int]] = []

    def _evict(self, block: int) -> None:
        self.evicted.append((self._key_of[block], block))
        super()._evict(block)


class WritesBack(TieredScheduler):
    """Stores a block when it is evicted, in front of the batch that writes it, and waits for the store."""

    fails = "loads"

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._kv: NotesEvictions = NotesEvictions(blocks, block_size)
        self._fence: list[Hashable] = []

    def schedule(self) -> Batch:
        batch = super().schedule()
        self._fence = []
        for key, block in self._kv.evicted:
            unit = None if self._tier.knows(key) else self._tier.begin_store(key)
            if unit is not None:
                id = self._submit("store", [(block, unit)], before=True)
                self._stores[id] = Store(key, block)
                self._fence.append(id)
        self._kv.evicted.clear()
        return batch

    def waits(self) -> Collection[Hashable]:
        return self._fence

    def _pinned(self) -> set[int]:
        return self._loading()

    def _store(self, key: Key, block: int) -> None:
        pass

    def _end_store(self, store: Store, ok: bool) -> None:
        self._tier.end_store(store.key, ok)


class WritesBackIntoFew(WritesBack):
    """Its tier has few units: to store what a load evicts it evicts a unit, and none that the load reads."""

    def _tier_size(self, blocks: int) -> int:
        return 2


class ResetsInFlight(tiers.WithholdsForgotten, TieredScheduler):
    """Takes a reset with transfers in flight: what they use is kept out of the new pool until they have ended."""

    reset_in_flight = True

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        # Of each transfer from before a reset the blocks and the units that it uses.
        self._forgotten: dict[Hashable, tuple[list[Block], list[int]]] = {}

    def reset(self) -> None:
        for id, store in self._stores.items():
            self._forgotten[id] = [store.block], [self._tier._storing[store.key]]
        for id, load in self._loads.items():
            self._forgotten[id] = load.blocks, load.units
        self._stores.clear()
        self._loads.clear()
        super().reset()
        for blocks, units in self._forgotten.values():
            self._withhold(blocks)
            self._tier._free = [unit for unit in self._tier._free if unit not in units]

    def _withhold(self, blocks: list[Block]) -> None:
        for block in blocks:
            self._kv._free.remove(block)
            self._kv._refs[block] = 1


class ResetsGroupsInFlight(StatePool, TieredGroups, ResetsInFlight):
    """The same with full attention, a window and states."""

    def _withhold(self, blocks: list[Block]) -> None:
        for name, block in blocks:
            pool = self._kv._pools[name]
            pool.free.remove(block)
            pool.refs[block] = 1


class OverlapsWithTier(TieredScheduler, OverlapScheduler):
    """A tier under a scheduler with a batch in flight; the device orders loads behind it."""

    ordered = True

    def schedule(self, accepted: Sequence[Mapping[str, int]] = ()) -> Batch:
        return OverlapScheduler.schedule(self, accepted)


class OneUnit(TieredScheduler):
    """A tier of one unit, for which transfers compete."""

    def _tier_size(self, blocks: int) -> int:
        return 1


VARIANTS = {
    **GROUP_VARIANTS,
    **GROUP_TRANSFER_VARIANTS,
    **MOVE_VARIANTS,
    **GROUP_PEER_VARIANTS,
    **LATE_VARIANTS,
    **CHUNK_VARIANTS,
    "drops-stores": DropsEveryThirdStore,
    "hears-at-once": HearsAtOnce,
    "writes-back": WritesBack,
    "writes-back-into-few": WritesBackIntoFew,
    "overlaps-with-tier": OverlapsWithTier,
    "resets-in-flight": ResetsInFlight,
    "resets-groups-in-flight": ResetsGroupsInFlight,
    "lets-overtake": LetsOvertake,
    "holds-loaded": HoldsLoaded,
    "loads-inside": LoadsInside,
    "counts-written-blocks": CountsWrittenBlocks,
    "ends-on-failure": EndsOnFailure,
    "sends-before-preemption": SendsBeforePreemption,
}
