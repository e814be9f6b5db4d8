"""kv_managers with a tier that are right and do something unusual."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

from kvlockstep.impl.kv_manager.fenced import FencedManager
from kvlockstep.impl.variants import tiers
from kvlockstep.reference.kv.transfers import Loading, Transfer
from kvlockstep.reference.kv_manager.announcer import Announcer
from kvlockstep.reference.kv_manager.events import Event
from kvlockstep.reference.kv_manager.manager import Key, KVManager
from kvlockstep.reference.kv_manager.tier import HOST, Load
from kvlockstep.reference.kv_manager.tiered import TieredManager


class HearsAtOnce(tiers.HearsAtOnce, TieredManager):
    """Takes in the end of a transfer when it is told, and waits for no poll."""


class AnswersAtOnce(TieredManager):
    """Answers an admission that loads as if everything were there."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> Any:
        said = super().admit(rid, tokens, extra_key, n)
        if not isinstance(said, Loading):
            return said
        self._live[rid].computed = said.cached
        return said.cached


class LoadsInStep(AnswersAtOnce):
    """Answers with the whole hit, and loads in the step that reads it: the worker waits for the load."""

    fails = "stores"

    def waits(self) -> Collection[Hashable]:
        return list(self._loads)

    def _end_load(self, load: Load, ok: bool) -> None:
        computed = load.request.computed
        super()._end_load(load, ok)
        load.request.computed = computed


class WritesBack(FencedManager):
    """Stores a block when it is evicted, and waits for the store before the block is written."""

    def commit(self, rid: str, n: int) -> None:
        KVManager.commit(self, rid, n)

    def _evict(self, block: int) -> None:
        key = self._key_of[block]
        super()._evict(block)
        if not self._tier.knows(key):
            self._store(key, block)


class WaitsInside(WritesBack):
    """Stores a block when it is evicted, and has waited for the store when the call that evicts it returns."""

    fails = "loads"

    def _store(self, key: Key, block: int) -> None:
        super()._store(key, block)
        for store in self._stores.values():
            self._submitted[-1] = self._submitted[-1]._replace(waited=True)
            self._end_store(store, True)
        self._stores.clear()


class WritesBackIntoFew(WaitsInside):
    """Its tier has few units: to store what a load evicts it evicts a unit, and none that the load reads."""

    def _tier_size(self, blocks: int) -> int:
        return 2


class DropsEveryThirdStore(tiers.DropsEveryThirdStore, TieredManager):
    """A tier that has no time for every third store."""


class SaysNothingOfLimbo(TieredManager):
    """Has no `limbo()`, so the judge allows for the blocks of every transfer whose end was not heard."""

    late_release = False


class ResetsInFlight(tiers.WithholdsForgotten, TieredManager):
    """Takes a reset with transfers in flight: what they use is kept out of the new pool until they have ended."""

    reset_in_flight = True

    def reset(self) -> None:
        # Of each transfer from before a reset the blocks and the units that it uses.
        forgotten: dict[Hashable, tuple[list[int], list[int]]] = dict(getattr(self, "_forgotten", {}))
        for id, store in getattr(self, "_stores", {}).items():
            forgotten[id] = [store.block], [self._tier._storing[store.key]]
        for id, load in getattr(self, "_loads", {}).items():
            forgotten[id] = load.blocks, load.units
        self._forgotten = forgotten
        super().reset()
        for blocks, units in forgotten.values():
            for block in blocks:
                self._free.remove(block)
                self._refs[block] = 1
            self._tier._free = [unit for unit in self._tier._free if unit not in units]


class AnnouncesTiers(TieredManager):
    """Sends events of the pool and of the tier."""

    event_listener = "set"
    announcer_type = Announcer

    def __init__(self, blocks: int, block_size: int) -> None:
        self._announcer = self.announcer_type(block_size)
        super().__init__(blocks, block_size)

    def reset(self) -> None:
        super().reset()
        self._events: list[Event] = []
        self._announcer.clear()

    def poll(self) -> None:
        self._notice()
        super().poll()

    def events(self) -> list[Event]:
        self._notice()
        events, self._events = self._events, []
        return events

    def _evict(self, block: int) -> None:
        self._notice()
        super()._evict(block)

    def _store(self, key: Key, block: int) -> None:
        self._notice()
        super()._store(key, block)

    def _notice(self) -> None:
        """Before something goes, what has come: else a child could stand behind a parent that nobody heard of."""
        self._events += self._announcer.changes({None: self._cached, HOST: self._tier._cached})


class LoadsAtLaunch(AnnouncesTiers, LoadsInStep):
    """Answers with the whole hit, and submits its load when the step is launched; sends events."""

    can_withdraw = False

    def reset(self) -> None:
        super().reset()
        self._queued: list[Transfer] = []

    def launch(self) -> None:
        super().launch()
        self._submitted += self._queued
        self._queued.clear()

    def _load(self, rid: str, found: dict[Key, int], blocks: list[int]) -> None:
        super()._load(rid, found, blocks)
        self._queued.append(self._submitted.pop())


class LoadsWhileItAdmits(AnnouncesTiers, AnswersAtOnce):
    """Loads inside `admit`, which returns when the load has ended; sends events of the pool and of the tier."""

    fails = "stores"

    def _load(self, rid: str, found: dict[Key, int], blocks: list[int]) -> None:
        super()._load(rid, found, blocks)
        self._submitted[-1] = self._submitted[-1]._replace(waited=True)
        self._end_load(self._loads.pop(self._submitted[-1].id), True)


class LoadsBeforeItAnswers(TieredManager):
    """Answers an admission that loads with `Loading`, and has waited for the load by then: the request is ready."""

    fails = "stores"

    def _load(self, rid: str, found: dict[Key, int], blocks: list[int]) -> None:
        super()._load(rid, found, blocks)
        self._submitted[-1] = self._submitted[-1]._replace(waited=True)
        self._end_load(self._loads.pop(self._submitted[-1].id), True)


class LosesUnits(TieredManager):
    """Its tier may lose a unit at any time; a load that reads it fails."""

    loses = True


LOADING_VARIANTS: dict[str, Any] = {
    "loses-units": LosesUnits,
    "hears-at-once": HearsAtOnce,
    "loads-in-step": LoadsInStep,
    "loads-at-launch": LoadsAtLaunch,
    "loads-while-it-admits": LoadsWhileItAdmits,
    "loads-before-it-answers": LoadsBeforeItAnswers,
    "writes-back": WritesBack,
    "waits-inside": WaitsInside,
    "writes-back-into-few": WritesBackIntoFew,
    "drops-stores": DropsEveryThirdStore,
    "says-nothing-of-limbo": SaysNothingOfLimbo,
    "resets-in-flight": ResetsInFlight,
    "announces-tiers": AnnouncesTiers,
}
