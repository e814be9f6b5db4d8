"""A part of managers and schedulers with a tier: what they submit, and how they hear of the ends."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any

from kvlockstep.reference.kv.transfers import TierUnits, Transfer
from kvlockstep.reference.kv_manager.tier import HOST, Block, Key, Store, Tier


class Transferring:
    """The transfers in flight of one target, and its tier.

    The target calls `_set_up` and `_clear`, and fills in the methods that are not implemented here. It names this base
    last, so that methods of its other bases come first.
    """

    tier_type = Tier
    fails: str | dict[str, str] | None = "any"
    late_release = True

    tiers: dict[str, int]
    _tier: Tier
    _stores: dict[Hashable, Store]
    _loads: dict[Hashable, Any]
    _submitted: list[Transfer]
    _completed: list[tuple[Hashable, bool]]
    _ids: Iterator[int]

    def _set_up(self, units: int) -> None:
        """Nothing is submitted yet, and the tier is to have so many units."""
        self.tiers = {HOST: units}
        self._submitted = []
        self._completed = []
        self._ids = itertools.count()

    def _clear(self) -> None:
        """The tier is empty, and nothing is in flight."""
        self._tier = self.tier_type(self.tiers[HOST])
        self._stores = {}
        self._loads = {}

    def transfers(self) -> Sequence[Transfer]:
        submitted, self._submitted = self._submitted, []
        return submitted

    def waits(self) -> Collection[Hashable]:
        return []

    def complete(self, id: Hashable, ok: bool) -> None:
        self._completed.append((id, ok))

    def poll(self) -> None:
        completed, self._completed = self._completed, []
        for id, ok in completed:
            if id in self._stores:
                self._end_store(self._stores.pop(id), ok)
            else:
                self._end_load(self._loads.pop(id), ok)

    def tier(self, name: str) -> TierUnits:
        return self._tier.units()

    def _tier_size(self, blocks: int) -> int:
        return 2 * blocks

    def _store(self, key: Key, block: Block) -> None:
        """Submits a store of a block that has just been computed; drops it if the tier has no room."""
        unit = self._tier.begin_store(key)
        if unit is not None:
            self._hold(block)
            self._stores[self._submit("store", [(block, unit)])] = Store(key, block)

    def _end_store(self, store: Store, ok: bool) -> None:
        """The end of a store is heard."""
        self._tier.end_store(store.key, ok)
        self._drop(store.block)

    def _end_load(self, load: Any, ok: bool) -> None:
        """The end of a load is heard."""
        raise NotImplementedError

    def _submit(self, kind: str, pairs: list[Any], *rids: str) -> Hashable:
        """Reports a store, or a load for `rids`; returns its id."""
        raise NotImplementedError

    def _pinned(self) -> set[Block]:
        """The blocks that transfers in flight keep."""
        return {store.block for store in self._stores.values()} | self._loading()

    def _loading(self) -> set[Block]:
        """The blocks that loads in flight keep."""
        return {block for load in self._loads.values() for block in load.kept}

    def _hold(self, block: Block) -> None:
        """Keeps a block from being taken until a transfer has ended."""
        raise NotImplementedError

    def _drop(self, block: Block) -> None:
        """Lets go of a block that a transfer has kept."""
        raise NotImplementedError
