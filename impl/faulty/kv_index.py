"""Faults of kv_index."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeGuard

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.variants.kv_index import CountsCopies
from kvlockstep.reference.kv_index.contract import Worker, WorkerSnapshot
from kvlockstep.reference.kv_index.index import KVIndex, Prefix, WorkerCache
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event


class Indexed(KVIndex):
    """The reference with another `Cache` for each worker."""

    Cache: type[WorkerCache] = WorkerCache

    def new_cache(self, last: int = -1) -> WorkerCache:
        return self.Cache(self._size, self.event_listener == "counting", last)


# ---- what a block is ----


@fault("index-extra-key-dropped", law="index_exact", seen=("llm-d-kv-cache#411",))
class ExtraKeyDropped(KVIndex):
    """Extra keys are dropped on the way in, so that a prompt with one is never found."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        return super().apply(worker, number, event._replace(extra_key=None) if _is_store(event) else event)


@fault("index-salt-not-hashed", law="index_exact", seen=("sglang#24568",))
class SaltNotHashed(KVIndex):
    """The salt is in no key, on neither side, so that two namespaces share their blocks."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        return super().apply(worker, number, event._replace(extra_key=None) if _is_store(event) else event)

    def known(self, tokens: Sequence[int], extra_key: int | None) -> dict[Worker, int]:
        return super().known(tokens, None)


@fault("index-zero-is-no-key", law="index_exact", seen=("mutant",))
class ZeroIsNoKey(KVIndex):
    """The extra key 0 is taken for none."""

    def known(self, tokens: Sequence[int], extra_key: int | None) -> dict[Worker, int]:
        return super().known(tokens, extra_key or None)


@fault("index-parent-key-zero", law="index_exact", seen=("mutant",))
class ParentKeyZero(KVIndex):
    """A parent with the key 0 is taken for none, so that its children are stored at the root."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        return super().apply(worker, number, event._replace(parent=event.parent or None) if _is_store(event) else event)


@fault("index-block-without-parent", law="index_exact", seen=("mutant",))
class BlockWithoutParent(Indexed):
    """A block is known by its own tokens, whatever stands in front of it."""

    class Cache(WorkerCache):
        def head(self, tokens: Sequence[int], extra_key: int | None) -> int:
            size, whole = self._size, len(tokens) // self._size
            last = {(key, prefix[-size:]) for key, prefix in self.copies}
            blocks = [tuple(tokens[i * size : (i + 1) * size]) for i in range(whole)]
            return next((i for i, block in enumerate(blocks) if (extra_key, block) not in last), whole)


@fault("index-equal-blocks-once", law="index_exact", seen=("mutant",))
class EqualBlocksOnce(Indexed):
    """A block that is equal to the one before it is taken for that block."""

    class Cache(WorkerCache):
        def add(self, prefix: Prefix) -> None:
            _, tokens = prefix
            if len(tokens) == self._size or tokens[-self._size :] != tokens[-2 * self._size : -self._size]:
                super().add(prefix)


@fault("index-hole-in-the-middle", law="index_exact", seen=("mutant",))
class HoleInTheMiddle(Indexed):
    """A lookup counts all cached blocks of a sequence, also those behind one that is not."""

    class Cache(WorkerCache):
        def head(self, tokens: Sequence[int], extra_key: int | None) -> int:
            ends = range(self._size, len(tokens) + 1, self._size)
            return sum((extra_key, tuple(tokens[:end])) in self.copies for end in ends)


@fault("index-first-block-only", law="index_exact", seen=("mutant",))
class FirstBlockOnly(KVIndex):
    """Of a store of several blocks the first one is taken in."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        if _is_store(event):
            event = event._replace(keys=event.keys[:1])
        return super().apply(worker, number, event)


# ---- removals ----


@fault("index-copy-removes-all", law="index_exact", seen=("vllm#55092",))
class CopyRemovesAll(CountsCopies):
    """The removal of one of two copies removes the block."""

    class Cache(WorkerCache):
        def drop(self, key: Hashable) -> None:
            self.copies.pop(self.named.get(key, (None, ())), None)

    def new_cache(self, last: int = -1) -> WorkerCache:
        return self.Cache(self._size, counting=True, last=last)


@fault("index-copies-counted-in-a-set", law="index_exact", seen=("mutant",))
class CopiesCountedInASet(Indexed):
    """Stores of a block are counted though one removal ends it, so that it stays for ever."""

    class Cache(WorkerCache):
        def add(self, prefix: Prefix) -> None:
            self.copies[prefix] += 1


@fault("index-missing-key-stops", law="index_safe", seen=("dynamo#14652",))
class MissingKeyStops(Indexed):
    """A removal stops at the first key that is not cached, and leaves the keys behind it."""

    class Cache(WorkerCache):
        def take(self, event: Event) -> None:
            if isinstance(event, BlockRemoved):
                known = [self.named.get(key) in self.copies for key in event.keys]
                event = BlockRemoved(event.keys[: [*known, False].index(False)])
            super().take(event)


@fault("index-missing-key-raises", law="error_contract", seen=("mutant",))
class MissingKeyRaises(Indexed):
    """A removal of a key that is not known raises KeyError."""

    class Cache(WorkerCache):
        def drop(self, key: Hashable) -> None:
            del self.copies[self.named[key]]
            super().drop(key)


@fault("index-split-removes", law="index_exact", seen=("sglang#14934",))
class SplitRemoves(Indexed):
    """A store that branches off a path splits its node, and loses the blocks of the shared part."""

    class Cache(WorkerCache):
        def add(self, prefix: Prefix) -> None:
            key, tokens = prefix
            before = tokens[: -self._size]
            siblings = [p for p in self.copies if p != prefix and (p[0], p[1][: -self._size]) == (key, before)]
            super().add(prefix)
            if before and siblings:
                self.copies.pop((key, before), None)


@fault("index-orphans-lost", law="index_exact", seen=("mutant",))
class OrphansLost(Indexed):
    """A removal drops what lies below, though the index promises to keep it."""

    class Cache(WorkerCache):
        def drop(self, key: Hashable) -> None:
            super().drop(key)
            extra_key, removed = self.named.get(key, (None, ()))
            for prefix in [p for p in self.copies if removed and p[0] == extra_key and p[1][: len(removed)] == removed]:
                del self.copies[prefix]


# ---- clears, and workers that leave ----


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


# ---- gaps, old events, unknown parents ----


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


# ---- snapshots and lookups ----


@fault("index-snapshot-without-key", law="snapshot_exact", seen=("mutant",))
class SnapshotWithoutKey(KVIndex):
    """A snapshot leaves the extra keys out."""

    def snapshot(self) -> list[WorkerSnapshot]:
        return [
            row._replace(events=[e._replace(extra_key=None) if _is_store(e) else e for e in row.events])
            for row in super().snapshot()
        ]


@fault("index-snapshot-of-parents", law="snapshot_exact", seen=("mutant",))
class SnapshotOfParents(KVIndex):
    """A snapshot stores the parents of its blocks also if they were removed."""

    def snapshot(self) -> list[WorkerSnapshot]:
        return [row._replace(events=[e for e in row.events if _is_store(e)]) for row in super().snapshot()]


@fault("index-snapshot-without-number", law="duplicate_harmless", seen=("mutant",))
class SnapshotWithoutNumber(KVIndex):
    """A snapshot says of every worker that its first event is the next."""

    tells_gaps = False

    def snapshot(self) -> list[WorkerSnapshot]:
        return [row._replace(number=-1) for row in super().snapshot()]


@fault("index-answers-remembered", law="index_exact", seen=("mutant",))
class AnswersRemembered(KVIndex):
    """The answers of lookups are remembered, and only a store forgets them."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._answers: dict[tuple[tuple[int, ...], int | None], dict[Worker, int]] = {}

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        if _is_store(event):
            self._answers.clear()
        return super().apply(worker, number, event)

    def known(self, tokens: Sequence[int], extra_key: int | None) -> dict[Worker, int]:
        question = tuple(tokens), extra_key
        if question not in self._answers:
            self._answers[question] = super().known(tokens, extra_key)
        return dict(self._answers[question])


@fault("index-part-of-a-block", law="index_safe", seen=("mutant",))
class PartOfABlock(Indexed):
    """The last block of a lookup is counted also if it is not whole, by the block that begins like it."""

    class Cache(WorkerCache):
        def head(self, tokens: Sequence[int], extra_key: int | None) -> int:
            whole, asked = super().head(tokens, extra_key), tuple(tokens)
            rest = len(tokens) % self._size and whole == len(tokens) // self._size
            return whole + bool(
                rest and any(key == extra_key and stored[: len(asked)] == asked for key, stored in self.copies)
            )


@fault("index-equal-blocks-hang", law="termination", seen=("mutant",))
class EqualBlocksHang(KVIndex):
    """A lookup skips blocks that equal the one before them, and never gets past the last of them."""

    def known(self, tokens: Sequence[int], extra_key: int | None) -> dict[Worker, int]:
        size, i = self._size, 0
        while i + 2 * size <= len(tokens):
            if tokens[i : i + size] != tokens[i + size : i + 2 * size] or len(tokens) < 3 * size:
                i += size
        return super().known(tokens, extra_key)


def _is_store(event: Event) -> TypeGuard[BlockStored]:
    return isinstance(event, BlockStored)
