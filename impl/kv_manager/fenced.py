"""kv_manager with a tier that frees blocks while they are still being stored.

Nothing keeps the source of a store. Before a step, or a load, writes such a block the worker waits for the store; the
manager hears of its end later, as of any other.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from kvlockstep.reference.kv_manager.manager import Key
from kvlockstep.reference.kv_manager.tier import Store
from kvlockstep.reference.kv_manager.tiered import TieredManager


class FencedManager(TieredManager):
    """Meets reference.contracts.KVManagerTarget with transfers."""

    def waits(self) -> Collection[Hashable]:
        return self._unpublished()

    def _unpublished(self) -> list[Hashable]:
        """The stores whose source was evicted: somebody else may write it. What is published nobody writes."""
        return [id for id, store in self._stores.items() if self._key_of.get(store.block) != store.key]

    def _pinned(self) -> set[int]:
        return {block for load in self._loads.values() for block in load.blocks}

    def _store(self, key: Key, block: int) -> None:
        unit = self._tier.begin_store(key)
        if unit is not None:
            self._stores[self._submit("store", [(block, unit)])] = Store(key, block)

    def _end_store(self, store: Store, ok: bool) -> None:
        self._tier.end_store(store.key, ok)

    def _submit(self, kind: str, pairs: list[tuple[int, int]], *rids: str) -> Hashable:
        id = super()._submit(kind, pairs, *rids)
        if kind == "load":
            filled = {block for _, block in pairs}
            after = [other for other in self._unpublished() if self._stores[other].block in filled]
            self._submitted[-1] = self._submitted[-1]._replace(after=after)
        return id
