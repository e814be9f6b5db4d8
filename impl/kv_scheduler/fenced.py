"""kv_scheduler with a tier that frees blocks while they are still being stored.

Nothing keeps the source of a store. Before a batch, or a load, writes such a block the worker waits for the store; the
scheduler hears of its end later, as of any other.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

from kvlockstep.reference.kv_manager.tier import Block, Key, Store
from kvlockstep.reference.kv_scheduler.contract import Batch, Item
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


class FencedScheduler(TieredScheduler):
    """Meets kv_scheduler.contract.KVSchedulerTarget with transfers."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._fence: list[Hashable] = []

    def schedule(self) -> Batch:
        batch = super().schedule()
        self._fence = self._stores_of(self._written({block for item in batch.items for block in self._writes(item)}))
        return batch

    def waits(self) -> Collection[Hashable]:
        return self._fence

    def _writes(self, item: Item) -> Iterable[Block]:
        """The blocks that an item writes."""
        return {slot // self.block_size for slot in item.slots[item.start :]}

    def _written(self, blocks: set[Block]) -> set[Block]:
        """The blocks that are written next: those of the batch, and the targets of loads."""
        return blocks.union(*(load.blocks for load in self._loads.values()))

    def _stores_of(self, blocks: Collection[Block]) -> list[Hashable]:
        return [id for id, store in self._stores.items() if store.block in blocks]

    def _pinned(self) -> set[Block]:
        return self._loading()

    def _store(self, key: Key, block: Block) -> None:
        unit = self._tier.begin_store(key)
        if unit is not None:
            self._stores[self._submit("store", [(block, unit)])] = Store(key, block)

    def _end_store(self, store: Store, ok: bool) -> None:
        self._tier.end_store(store.key, ok)
