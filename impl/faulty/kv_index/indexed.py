"""What several faults of kv_index are made of."""

from __future__ import annotations

from typing import TypeGuard

from kvlockstep.reference.kv_index.index import KVIndex, WorkerCache
from kvlockstep.reference.kv_manager.contract import BlockStored, Event


class Indexed(KVIndex):
    """The reference with another `Cache` for each worker."""

    Cache: type[WorkerCache] = WorkerCache

    def new_cache(self, last: int = -1) -> WorkerCache:
        return self.Cache(self._size, self.event_listener == "counting", last)


def is_store(event: Event) -> TypeGuard[BlockStored]:
    """Tells whether an event stores blocks."""
    return isinstance(event, BlockStored)
