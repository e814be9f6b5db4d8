"""kv_managers with groups and a tier that are right and do something unusual."""

from __future__ import annotations

from typing import Any

from kvlockstep.impl.variants.groups import CopiesCheckpoints
from kvlockstep.reference.kv.transfers import Loading
from kvlockstep.reference.kv_manager.groups.announcing import AnnouncingGroups, AnnouncingTier
from kvlockstep.reference.kv_manager.groups.geometries import (
    StatePool,
    TieredPools,
    TieredStates,
    TieredWindow,
    TieredWindows,
)
from kvlockstep.reference.kv_manager.groups.in_tier import Block
from kvlockstep.reference.kv_manager.groups.pool import Key
from kvlockstep.reference.kv_manager.groups.tiered import TieredGroupManager
from kvlockstep.reference.kv_manager.tier import HOST, Load


class LoadsByGroup(TieredGroupManager):
    """Loads the blocks of each group in a transfer of its own; a request is ready when all have ended."""

    def _begin(self, rid: str, load: Load) -> None:
        for g in range(len(self.groups)):
            part = [i for i, key in enumerate(load.keys) if key[0] == g]
            if part:
                units, blocks = [load.units[i] for i in part], [load.blocks[i] for i in part]
                super()._begin(rid, Load(load.request, [load.keys[i] for i in part], units, blocks))


class LoadsStatesApart(StatePool, LoadsByGroup):
    """Full attention, a window and states, each loaded apart."""


class AnnouncesWithTier(AnnouncingGroups, TieredWindow):
    """Full attention and a window, over a tier of which nothing is announced."""

    silent_tiers = True


class AnnouncesTier(AnnouncingGroups, TieredGroupManager):
    """Announces what its tier has as well."""

    announcing_tier = AnnouncingTier

    def _clear(self) -> None:
        super()._clear()
        self._tier = self.announcing_tier(self.tiers[HOST], self.groups, self._events)


class AnnouncesTierOfWindow(AnnouncesTier, TieredWindow):
    """Full attention and a window, announced in pool and tier."""


class AnnouncesTierOfStates(AnnouncesTier, TieredStates):
    """Full attention, a window, and states in a pool of their own, announced in pools and tier."""


class TierOfOneGroup(TieredPools):
    """Stores full attention only: what a hit needs of the window has to be in the pool still."""

    def _store(self, key: Key, block: Block) -> None:
        if key[0] == 0:
            super()._store(key, block)


class StoresInside(TieredGroupManager):
    """Has waited for a store when the commit returns that submits it."""

    fails: str | dict[str, str] | None = "loads"

    def _store(self, key: Key, block: Block) -> None:
        super()._store(key, block)
        for store in self._stores.values():
            self._submitted[-1] = self._submitted[-1]._replace(waited=True)
            self._end_store(store, True)
        self._stores.clear()


class LoadsInside(TieredGroupManager):
    """Has waited for a load when the admission returns, which answers with a number."""

    fails: str | dict[str, str] | None = "stores"

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        said = super().admit(rid, tokens, extra_key, n)
        if not isinstance(said, Loading):
            return said
        for g, group in enumerate(self.groups):
            if group.kind == "state":
                self._grow_in(g, self._live[rid], min(n, len(tokens) - said.cached))
        return said.cached

    def _begin(self, rid: str, load: Load) -> None:
        super()._begin(rid, load)
        self._submitted[-1] = self._submitted[-1]._replace(waited=True)
        self._end_load(self._loads.pop(self._submitted[-1].id), True)


class WaitsForStates(StatePool, StoresInside, LoadsInside):
    """Full attention, a window and states, stored inside commits and loaded inside admissions."""

    fails = None


class StoresCheckpoints(CopiesCheckpoints, TieredGroupManager):
    """Publishes a copy of a state at the commit and stores that, behind the copy."""


GROUP_LOADING_VARIANTS: dict[str, Any] = {
    "tiered-windows": TieredWindows,
    "loads-states-apart": LoadsStatesApart,
    "announces-with-tier": AnnouncesWithTier,
    "announces-tier-of-window": AnnouncesTierOfWindow,
    "announces-tier-of-states": AnnouncesTierOfStates,
    "tier-of-one-group": TierOfOneGroup,
    "waits-for-states": WaitsForStates,
    "stores-checkpoints": StoresCheckpoints,
}
