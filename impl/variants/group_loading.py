"""kv_managers with groups and a tier that are right and do something unusual."""

from __future__ import annotations

from typing import Any

from kvlockstep.impl.variants import tiers
from kvlockstep.reference.kv_manager.groups.geometries import (
    StatePool,
    TieredPools,
    TieredWindow,
    TieredWindows,
)
from kvlockstep.reference.kv_manager.groups.in_tier import Block
from kvlockstep.reference.kv_manager.groups.pool import Key
from kvlockstep.reference.kv_manager.groups.tiered import Load, TieredGroupManager


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


class HearsGroupsAtOnce(tiers.HearsAtOnce, TieredWindow):
    """Takes in the end of a transfer when it is told, and waits for no poll."""


class TierOfOneGroup(TieredPools):
    """Stores full attention only: what a hit needs of the window has to be in the pool still."""

    def _store(self, key: Key, block: Block) -> None:
        if key[0] == 0:
            super()._store(key, block)


GROUP_LOADING_VARIANTS: dict[str, Any] = {
    "tiered-windows": TieredWindows,
    "tiered-pools": TieredPools,
    "loads-states-apart": LoadsStatesApart,
    "hears-groups-at-once": HearsGroupsAtOnce,
    "tier-of-one-group": TierOfOneGroup,
}
