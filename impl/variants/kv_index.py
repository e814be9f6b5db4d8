"""Variants of kv_index: indexes that keep the contract in a way of their own. No law may blame them."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

from kvlockstep.reference.kv_index.contract import Worker
from kvlockstep.reference.kv_index.index import KVIndex, Prefix, WorkerCache
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event


class CountsCopies(KVIndex):
    """Hears a store and a removal for each copy of a block."""

    event_listener = "counting"


class SharesKeys(KVIndex):
    """Has workers whose equal keys name equal blocks."""

    shared_keys = True


class DropsOrphans(KVIndex):
    """Drops what lies below a removed block, and what is stored behind a block that it does not know."""

    orphans = "dropped"

    class Cache(WorkerCache):
        def drop(self, key: Hashable) -> None:
            super().drop(key)
            extra_key, removed = self.named.get(key, (None, ()))
            below = [p for p in self.copies if removed and p[0] == extra_key and p[1][: len(removed)] == removed]
            for prefix in below:
                if self.named.get(key) not in self.copies:
                    del self.copies[prefix]

        def store(self, event: BlockStored) -> None:
            if event.parent is None or self.named.get(event.parent) in self.copies:
                super().store(event)

    def new_cache(self, last: int = -1) -> WorkerCache:
        return self.Cache(self._size, counting=False, last=last)


class ForgetsRemovedKeys(KVIndex):
    """Knows no more what a key named once its block is removed, so that nothing can be stored behind it."""

    class Cache(WorkerCache):
        def store(self, event: BlockStored) -> None:
            if event.parent is None or self.named.get(event.parent) in self.copies:
                super().store(event)

    def new_cache(self, last: int = -1) -> WorkerCache:
        return self.Cache(self._size, counting=False, last=last)


class WaitsBehindAGap(KVIndex):
    """Ignores everything behind a gap but a clear event, until it is resynchronised."""

    waits_for_resync = True

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._waiting: set[Worker] = set()

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        clears = isinstance(event, AllBlocksCleared)
        waits = worker in self._waiting and not clears
        gap = super().apply(worker, number, BlockRemoved(()) if waits else event)
        if clears:
            self._waiting.discard(worker)
        elif gap:
            self._waiting.add(worker)
        return gap

    def remove(self, worker: Worker) -> None:
        super().remove(worker)
        self._waiting.discard(worker)

    def resync(self, worker: Worker, number: int, events: Sequence[Event]) -> None:
        super().resync(worker, number, events)
        self._waiting.discard(worker)


class ForgetsAtAGap(KVIndex):
    """Forgets a worker's blocks at a gap, and starts again."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        cache = self._workers.get(worker)
        if cache is not None and number > cache.last + 1:
            cache.take(AllBlocksCleared())
        return super().apply(worker, number, event)


class RemovesLazily(KVIndex):
    """Keeps removed blocks as tombstones, which only a clear or a removal of the worker takes away."""

    class Cache(WorkerCache):
        def drop(self, key: Hashable) -> None:
            prefix = self.named.get(key)
            if prefix is not None and prefix in self.copies:
                self.copies[prefix] = 0

        def head(self, tokens: Sequence[int], extra_key: int | None) -> int:
            n = 0
            while (n + 1) * self._size <= len(tokens):
                prefix: Prefix = (extra_key, tuple(tokens[: (n + 1) * self._size]))
                if not self.copies.get(prefix):
                    break
                n += 1
            return n

        def events(self) -> list[Event]:  # type: ignore[override]
            self.copies = +self.copies
            return list(super().events())

    def new_cache(self, last: int = -1) -> WorkerCache:
        return self.Cache(self._size, counting=False, last=last)


class KnowsNoNumbers(KVIndex):
    """Takes every event as it comes, tells nothing, and knows neither snapshots nor extra keys."""

    extra_key = False
    tells_gaps = False
    ignores_old = False
    can_resync = False
    can_snapshot = False

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        self._workers.setdefault(worker, self.new_cache()).take(event)
        return False


VARIANTS: dict[str, type[KVIndex]] = {
    re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower(): index
    for name, index in list(globals().items())
    if isinstance(index, type) and issubclass(index, KVIndex) and index is not KVIndex
}
"""Name to factory; CountsCopies is `counts-copies`."""
