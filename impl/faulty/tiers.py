"""Tiers that are wrong, beneath managers and schedulers that are faults of their contracts."""

from __future__ import annotations

from kvlockstep.reference.kv.transfers import TierUnits
from kvlockstep.reference.kv_manager.tier import Block, Key, Store, Tier
from kvlockstep.reference.kv_manager.transferring import Transferring

WINDOW = 1  # the group, behind full attention


class UnpinnedTier(Tier):
    """Units that loads read are evicted like others."""

    def begin_load(self, key: Key) -> None:
        pass

    def end_load(self, key: Key, unit: int, ok: bool) -> None:
        if not ok and self._cached.get(key) == unit:
            self._free.append(self._cached.pop(key))


class PinsLate(Tier):
    """What a load reads is pinned when `pin` is called."""

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self._late: list[int] = []

    def begin_load(self, key: Key) -> None:
        self._late.append(self._cached[key])

    def pin(self) -> None:
        self._readers.update(self._late)
        self._late.clear()

    def end_load(self, key: Key, unit: int, ok: bool) -> None:
        self._readers[unit] -= 1
        if not ok and self._cached.get(key) == unit:
            self._free.append(self._cached.pop(key))

    def units(self) -> TierUnits:
        cached = list(self._cached.values())
        pinned = [unit for unit in cached if self._readers[unit]]
        return TierUnits(list(self._free), cached, list(self._storing.values()), pinned)


class FreesTwice(Tier):
    """The unit of a store that failed is given back twice."""

    def end_store(self, key: Key, ok: bool) -> None:
        unit = self._storing[key]
        super().end_store(key, ok)
        if not ok:
            self._free.append(unit)


class KeepsReaders(Tier):
    """A load that failed stays a reader of its units."""

    def end_load(self, key: Key, unit: int, ok: bool) -> None:
        if ok:
            super().end_load(key, unit, ok)


class KeyLacksGroup(Tier):
    """Finds blocks by their tokens, whichever group they are of."""

    def knows(self, key: Key) -> bool:
        return super().knows(key[1:])

    def find(self, key: Key) -> int | None:
        return super().find(key[1:])

    def begin_store(self, key: Key) -> int | None:
        return super().begin_store(key[1:])

    def end_store(self, key: Key, ok: bool) -> None:
        super().end_store(key[1:], ok)

    def begin_load(self, key: Key) -> None:
        super().begin_load(key[1:])

    def end_load(self, key: Key, unit: int, ok: bool) -> None:
        super().end_load(key[1:], unit, ok)


class UnpinnedWindowStores(Transferring):
    """Stores pin no block of a window."""

    def _store(self, key: Key, block: Block) -> None:
        super()._store(key, block)
        if key[0] == WINDOW and any(store == Store(key, block) for store in self._stores.values()):
            self._drop(block)

    def _end_store(self, store: Store, ok: bool) -> None:
        if store.key[0] == WINDOW:
            self._tier.end_store(store.key, ok)
        else:
            super()._end_store(store, ok)
