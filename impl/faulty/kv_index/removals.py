"""Faults of kv_index: removals of blocks."""

from __future__ import annotations

from collections.abc import Hashable

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_index.indexed import Indexed
from kvlockstep.impl.variants.kv_index import CountsCopies
from kvlockstep.reference.kv_index.index import Prefix, WorkerCache
from kvlockstep.reference.kv_manager.contract import BlockRemoved, Event


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
