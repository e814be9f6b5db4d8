"""kv_managers with a tier, one with groups as well, that free blocks while they are still being stored.

Nothing keeps the source of a store, of no group. Before a step, a copy or a load writes such a block the worker waits
for the store; the manager hears of its end later, as of any other.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

from kvlockstep.reference.kv_manager.groups.geometries import StatePool
from kvlockstep.reference.kv_manager.groups.tiered import TieredGroupManager
from kvlockstep.reference.kv_manager.tier import Block, Key, Store
from kvlockstep.reference.kv_manager.tiered import TieredManager
from kvlockstep.reference.kv_manager.transferring import Transferring


class Fencing(Transferring):
    """A part of managers that keep no source of a store. It is named before the manager with the tier."""

    def waits(self) -> Collection[Hashable]:
        return self._unpublished()

    def _unpublished(self) -> list[Hashable]:
        """The stores whose source was evicted: somebody else may write it. What is published nobody writes."""
        return [id for id, store in self._stores.items() if self._published(store.block) != store.key]

    def _published(self, block: Block) -> Key | None:
        """The key under which a block can be hit."""
        raise NotImplementedError

    def _pinned(self) -> set[Block]:
        return self._loading()

    def _store(self, key: Key, block: Block) -> None:
        unit = self._tier.begin_store(key)
        if unit is not None:
            self._stores[self._submit("store", [(block, unit)])] = Store(key, block)

    def _end_store(self, store: Store, ok: bool) -> None:
        self._tier.end_store(store.key, ok)

    def _submit(self, kind: str, pairs: list[Any], *rids: str) -> Hashable:
        id = super()._submit(kind, pairs, *rids)
        if kind == "load":
            filled = {block for _, block in pairs}
            after = [other for other in self._unpublished() if self._stores[other].block in filled]
            self._submitted[-1] = self._submitted[-1]._replace(after=after)
        return id


class FencedManager(Fencing, TieredManager):
    """Meets reference.contracts.KVManagerTarget with transfers."""

    def _published(self, block: Block) -> Key | None:
        return self._key_of.get(block)


class FencedGroupManager(Fencing, TieredGroupManager):
    """Meets the contract with the traits `groups` and `tiers`; a block that slides off is free under its store, too."""

    def _published(self, block: Block) -> Key | None:
        pool, number = block
        return self._pools[pool].key_of.get(number)


class FencedStates(StatePool, FencedGroupManager):
    """Full attention, a window, and states in a pool of their own."""
