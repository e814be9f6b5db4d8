"""Faults of kv_index: gaps, old events, and parents that are not known."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_index.indexed import Indexed
from kvlockstep.reference.kv_index.contract import Worker
from kvlockstep.reference.kv_index.index import KVIndex, WorkerCache
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event


@fault("index-gap-again", law="gap_once", seen=("mutant",))
class GapAgain(KVIndex):
    """The expected number does not move at a gap, so that every later event is a gap again."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._expected: dict[Worker, int] = {}

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        expected = self._expected.get(worker, number)
        old = worker in self._workers and number <= self._workers[worker].last
        super().apply(worker, number, event)
        if number == expected:
            self._expected[worker] = number + 1
        return not old and number > expected

    def remove(self, worker: Worker) -> None:
        super().remove(worker)
        self._expected.pop(worker, None)

    def resync(self, worker: Worker, number: int, events: Sequence[Event]) -> None:
        super().resync(worker, number, events)
        self._expected[worker] = number + 1


@fault("index-gap-unseen", law="gap_once", seen=("mutant",))
class GapUnseen(KVIndex):
    """A gap of a single event is not noticed."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        last = self._workers[worker].last if worker in self._workers else -1
        return super().apply(worker, number, event) and number > last + 2


@fault("index-resync-keeps-number", law="gap_once", seen=("mutant",))
class ResyncKeepsNumber(KVIndex):
    """A resynchronisation leaves the number where it was, so that the next event is a gap again."""

    def resync(self, worker: Worker, number: int, events: Sequence[Event]) -> None:
        last = self._workers[worker].last if worker in self._workers else number
        super().resync(worker, number, events)
        self._workers[worker].last = last


@fault("index-resync-adds", law="index_exact", seen=("mutant",))
class ResyncAdds(KVIndex):
    """A resynchronisation adds to what is known, and forgets nothing."""

    def resync(self, worker: Worker, number: int, events: Sequence[Event]) -> None:
        old = self._workers.get(worker, self.new_cache())
        super().resync(worker, number, events)
        self._workers[worker].copies.update(dict.fromkeys(old.copies, 1))


@fault("index-removals-distrusted", law="index_safe", seen=("mutant",))
class RemovalsDistrusted(KVIndex):
    """The first event behind a gap is only taken in if it is a store."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        cache = self._workers.get(worker)
        gap = cache is not None and number > cache.last + 1
        return super().apply(worker, number, BlockRemoved(()) if gap and isinstance(event, BlockRemoved) else event)


@fault("index-orphan-at-the-root", law="parent_first", seen=("mutant",))
class OrphanAtTheRoot(Indexed):
    """Blocks behind a parent that is not known are stored at the root."""

    class Cache(WorkerCache):
        def store(self, event: BlockStored) -> None:
            super().store(event if event.parent in self.named else event._replace(parent=None))


@fault("index-old-applied", law="duplicate_harmless", seen=("mutant",))
class OldApplied(KVIndex):
    """An event that arrives again is applied again."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        last = self._workers[worker].last if worker in self._workers else -1
        if number > last:
            return super().apply(worker, number, event)
        self._workers[worker].take(event)
        return False


@fault("index-old-taken-for-restart", law="duplicate_harmless", seen=("mutant",))
class OldTakenForRestart(KVIndex):
    """A number that goes back is taken for a worker that has restarted, whose blocks are forgotten."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        if worker in self._workers and number < self._workers[worker].last:
            self._workers[worker].take(AllBlocksCleared())
        return super().apply(worker, number, event)
