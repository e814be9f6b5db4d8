"""Faults of kv_scheduler: transfers of blocks of several groups, of windows that slide, and of states."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_scheduler.caches_in_tier import CachesInTier
from kvlockstep.impl.faulty.tiers import KeyLacksGroup, UnpinnedWindowStores
from kvlockstep.impl.kv_scheduler.fenced_groups import FencedStates, FencedWindow
from kvlockstep.impl.variants.group_transfers import LoadsByGroup, LoadsGroupsInside
from kvlockstep.reference.kv_manager.groups.contract import Step
from kvlockstep.reference.kv_manager.groups.in_tier import Block
from kvlockstep.reference.kv_manager.groups.pool import Key
from kvlockstep.reference.kv_manager.groups.request import to_hit
from kvlockstep.reference.kv_manager.tier import Store
from kvlockstep.reference.kv_scheduler.contract import Item
from kvlockstep.reference.kv_scheduler.grouped import FullAndWindow
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler
from kvlockstep.reference.kv_scheduler.tiered import Load
from kvlockstep.reference.kv_scheduler.tiered_groups import TieredPools, TieredStates, TieredWindow

FULL, WINDOW, STATE = range(3)


@fault("sched-slid-store-unpinned", law="transfer_isolation", seen=("mutant",))
class SlidStoreUnpinned(UnpinnedWindowStores, TieredWindow):
    """A block that a window leaves is given away under its store; only full blocks are pinned."""


@fault("sched-fence-first-group", law="transfer_isolation", seen=("mutant",))
class FenceFirstGroup(FencedWindow):
    """The worker waits for stores of the blocks that a batch writes in the first group, and for no others."""

    def _writes(self, item: Item) -> Iterable[Block]:
        slots = [slot for slot in item.groups[FULL] if isinstance(slot, int)]
        return [self._block(FULL, slot // self.block_size) for slot in slots[item.start :]]


@fault("sched-fence-not-states", law="transfer_isolation", seen=("mutant",))
class FenceNotStates(FencedStates):
    """A state is saved to a block whose store the worker has not waited for."""

    def _writes(self, item: Item) -> Iterable[Block]:
        groups = [Step(None, []) if isinstance(told, Step) else told for told in item.groups]
        return super()._writes(item._replace(groups=groups))


@fault("sched-window-part-unloaded", law="prefix_soundness", seen=("mutant",))
class WindowPartUnloaded(CachesInTier, TieredWindow):
    """A load brings the blocks of the full group; those of the window are published, and never filled."""

    def _begin(self, load: Load) -> None:
        parts = zip(load.keys, load.units, load.blocks, strict=True)
        full = [(unit, block) for key, unit, block in parts if key[0] == FULL]
        if full:
            self._loads[self._submit("load", full, load.rid)] = load
        else:
            self._end_load(load, True)


@fault("sched-failed-load-rewinds-window", law="coverage", seen=("vllm-rbln#1151",))
class FailedLoadRewindsWindow(CachesInTier, FullAndWindow, LoadsGroupsInside):
    """A request goes back in front of what could not be loaded, where its window has no blocks."""

    def _rewind(self, load: Load) -> None:
        for job in [job for job in self._running if job.rid == load.rid]:
            request = self._kv._live[job.rid]
            first = min(len(key[2]) for key in load.keys) - self.block_size
            kept = first // self.block_size
            for g, table in enumerate(request.tables):
                for block in [block for block in table[kept:] if block is not None]:
                    self._drop(self._block(g, block))
                request.tables[g] = [*table[:kept], *[None] * (kept - len(table))]
            job.computed = request.computed = first
            self._launched = [item for item in self._launched if item.rid != job.rid]


@fault("sched-state-of-other-length", law="state_soundness", seen=("Megatron-LM#6416",))
class StateOfOtherLength(CachesInTier, TieredStates):
    """The state that is loaded is the one of a shorter prefix, if the tier has one as well."""

    def _begin(self, load: Load) -> None:
        named = zip(load.keys, load.units, strict=True)
        units = [self._shorter(key, unit) if key[0] == STATE else unit for key, unit in named]
        self._loads[self._submit("load", list(zip(units, load.blocks, strict=True)), load.rid)] = load

    def _shorter(self, key: Key, unit: int) -> int:
        g, extra_key, tokens = key
        size = self.groups[g].block_size
        return self._tier._cached.get((g, extra_key, tokens[:-size]), unit)


@fault("sched-first-group-loaded", law="load_before_read", seen=("mutant",))
class FirstGroupLoaded(CachesInTier, FullAndWindow, LoadsByGroup):
    """A request starts when the load of one of its groups has ended; those of the others still run."""

    fails = "stores"

    def _end_load(self, load: Load, ok: bool) -> None:
        super()._end_load(load, ok)
        for other in self._loads.values():
            for key, block in zip(other.keys, other.blocks, strict=True) if ok and other.rid == load.rid else ():
                self._publish_loaded(key, block)

    def _start(self, job: Job, left: int) -> int | None:
        parts = [load for load in self._loads.values() if load.rid == job.rid]
        begun = any(key in self._pool(key).cached for load in parts for key in load.keys)
        return KVScheduler._start(self, job, left) if begun else super()._start(job, left)


@fault("sched-failed-group-hit", law="failure_visible", seen=("mutant",))
class FailedGroupHit(CachesInTier, FullAndWindow, LoadsByGroup):
    """A load whose part for one group has failed counts in full, since the part for another group has not."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._brought: set[str] = set()

    def _end_load(self, load: Load, ok: bool) -> None:
        self._brought |= {load.rid} if ok else set()
        super()._end_load(load, load.rid in self._brought)


@fault("sched-tier-key-lacks-group", law="prefix_soundness", seen=("mutant",))
class TierKeyLacksGroup(CachesInTier, TieredWindow):
    """The tier knows a block by its tokens alone, so one group's block is loaded as another's."""

    tier_type = KeyLacksGroup


@fault("sched-slide-frees-target", law="target_owned", seen=("mutant",))
class SlideFreesTarget(CachesInTier, TieredWindow):
    """A window that slides while its request waits for a load frees a block that the load still writes."""

    def _begin(self, load: Load) -> None:
        super()._begin(load)
        ends = max(len(key[2]) for key in load.keys)
        # As if the first token behind the hit was computed.
        kept = to_hit(self.groups[WINDOW], ends + 1)
        for key, block in zip(load.keys, load.blocks, strict=True):
            if key[0] == WINDOW and len(key[2]) // self.block_size <= kept.start:
                self._drop(block)


@fault("sched-reset-keeps-group-below", law="backed", seen=("sglang#26792",))
class ResetKeepsGroupBelow(CachesInTier, TieredWindow):
    """A reset forgets what the tier has of the first group, and keeps the entries of the others."""

    def reset(self) -> None:
        kept = {key: unit for key, unit in self._tier._cached.items() if key[0] == WINDOW}
        super().reset()
        self._tier._cached.update(kept)
        self._tier._free = [unit for unit in self._tier._free if unit not in kept.values()]


@fault("sched-load-asks-one-pool", law="error_contract", seen=("mutant",))
class LoadAsksOnePool(CachesInTier, TieredPools):
    """A load asks the first pool for room, and takes blocks of the others without asking."""

    def _fits(self, wanted: list[Key], hit: list[Block]) -> bool:
        return super()._fits([key for key in wanted if key[0] == FULL], hit)


@fault("sched-store-pins-one-group", law="leak_freedom", seen=("mutant",))
class StorePinsOneGroup(TieredPools):
    """The end of a store releases the block of the first group; those of other pools stay pinned for ever."""

    def _end_store(self, store: Store, ok: bool) -> None:
        if store.key[0] != FULL:
            self._hold(store.block)
        super()._end_store(store, ok)


@fault("sched-load-in-wrong-pool", law="prefix_soundness", seen=("mutant",))
class LoadInWrongPool(CachesInTier, TieredPools):
    """The worker is told a load's blocks without their pools, and fills those of the first pool."""

    def _submit(self, kind: str, pairs: list[tuple[Any, ...]], *rids: str, before: bool = False) -> Hashable:
        if kind == "load":
            pairs = [(unit, (self.groups[FULL].pool, number)) for unit, (_, number) in pairs]
        return super()._submit(kind, pairs, *rids, before=before)
