"""Faults of kv_index: clears, workers that leave, and workers that are taken for one another."""

from __future__ import annotations

from collections.abc import Hashable

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_index.indexed import Indexed
from kvlockstep.reference.kv_index.contract import Worker
from kvlockstep.reference.kv_index.index import KVIndex, Prefix, WorkerCache
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event


@fault("index-clear-ignored", law="clear_heard", seen=("llm-d-kv-cache#593",))
class ClearIgnored(Indexed):
    """The event that a worker has cleared its cache is only logged."""

    class Cache(WorkerCache):
        def take(self, event: Event) -> None:
            if not isinstance(event, AllBlocksCleared):
                super().take(event)


@fault("index-remove-ignored", law="clear_heard", seen=("mutant",))
class RemoveIgnored(KVIndex):
    """A worker that has left is found until it sends an event again."""

    def remove(self, worker: Worker) -> None:
        cache = self._workers.get(worker)
        if cache is not None:
            cache.last = -1


@fault("index-number-outlives-worker", law="index_exact", seen=("mutant",))
class NumberOutlivesWorker(KVIndex):
    """The number of a worker outlives it, so that the events of the next one of its name are old."""

    def remove(self, worker: Worker) -> None:
        last = self._workers[worker].last if worker in self._workers else -1
        self._workers[worker] = self.new_cache(last)


@fault("index-keys-outlive-worker", law="index_exact", seen=("mutant",))
class KeysOutliveWorker(Indexed):
    """The name of a key outlives its worker, and the next worker uses the key for another block."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._kept: dict[Worker, dict[Hashable, Prefix]] = {}

    class Cache(WorkerCache):
        def store(self, event: BlockStored) -> None:
            old = dict(self.named)
            super().store(event)
            self.named.update(old)

    def remove(self, worker: Worker) -> None:
        if worker in self._workers:
            self._kept[worker] = self._workers[worker].named
        super().remove(worker)

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        gap = super().apply(worker, number, AllBlocksCleared()) if worker not in self._workers else None
        if gap is None:
            return super().apply(worker, number, event)
        self._workers[worker].named = self._kept.pop(worker, {})
        self._workers[worker].take(event)
        return gap


@fault("index-clear-clears-all", law="worker_isolated", seen=("mutant",))
class ClearClearsAll(KVIndex):
    """A clear event of one worker clears the blocks of all."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        if isinstance(event, AllBlocksCleared):
            for cache in self._workers.values():
                cache.take(event)
        return super().apply(worker, number, event)


@fault("index-removed-everywhere", law="worker_isolated", seen=("mutant",))
class RemovedEverywhere(Indexed):
    """A block that one worker removes is removed for all."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        if isinstance(event, BlockRemoved) and worker in self._workers:
            for key in event.keys:
                for cache in self._workers.values():
                    cache.copies.pop(self._workers[worker].named.get(key, (None, ())), None)
        return super().apply(worker, number, event)


@fault("index-keys-of-all-workers", law="index_exact", seen=("mutant",))
class KeysOfAllWorkers(KVIndex):
    """One table says what a key names for all workers, though each has keys of its own."""

    can_snapshot = False

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._named: dict[Hashable, Prefix] = {}

    def new_cache(self, last: int = -1) -> WorkerCache:
        cache = super().new_cache(last)
        cache.named = self._named
        return cache
