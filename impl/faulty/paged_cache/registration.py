"""Faults of paged_cache: registering blocks under keys."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.paged_cache.pool import WithFaultyPool
from kvlockstep.reference.paged_cache import PagedCache
from kvlockstep.reference.paged_cache.pool import PagedPool


@fault("paged-ghost-key", law="write_isolation", seen=("nano-vllm#163",))
class GhostKey(WithFaultyPool):
    """An evicted block keeps its key."""

    class pool_type(PagedPool):
        def evict(self, block: int) -> None:
            registered = self.registered
            super().evict(block)
            self.registered = registered

        def idle(self) -> list[int]:
            return [block for block in super().idle() if block not in self.free]


@fault("paged-registration-holds", law="refcount_exact", seen=("seed 004",))
class RegistrationHolds(PagedCache):
    """Registering a block counts as a reference to it."""

    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int:
        before = set(self._pool.registered.values())
        count = super().register(sequence, keys, first)
        for block in set(self._pool.registered.values()) - before:
            self._pool.blocks[block].holders += 1
        return count


@fault("paged-register-replaces", law="agreement", seen=("seed 004",))
class RegisterReplaces(PagedCache):
    """Registering a second block under a key replaces the first one, which is no longer cached."""

    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int:
        count = super().register(sequence, keys, first)
        for i, key in enumerate(keys):
            self._pool.registered[key] = self._tables[sequence][first + i]
        return count


@fault("paged-registers-unfilled", law="agreement", seen=("mutant",))
class RegistersUnfilled(PagedCache):
    """A block that is not full can be registered."""

    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int:
        _, table = self._find("register", sequence)
        named = keys[0] if len(keys) == 1 and 0 <= first < len(table) else None
        if named is not None and table[first] not in self._pool.registered.values():
            new = named not in self._pool.registered
            self._pool.registered.update({named: table[first]} if new else {})
            return int(new)
        return super().register(sequence, keys, first)


@fault("paged-cursor-forward", law="prefix_completeness", seen=("vllm#47235",))
class CursorForward(PagedCache):
    """A block that was registered and evicted is never registered again."""

    def reset(self) -> None:
        super().reset()
        self._stored: set[int] = set()

    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int:
        before = set(self._pool.registered)
        count = super().register(sequence, keys, first)
        passed = self._stored.intersection(keys) - before
        self._pool.registered = {key: b for key, b in self._pool.registered.items() if key not in passed}
        self._stored.update(keys)
        return count - len(passed)


@fault("paged-newer-wins", law="eviction_safety", seen=("shape: dedup",))
class NewerBlockWins(PagedCache):
    """Registering a second block under a key moves the holders of the first one over to it."""

    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int:
        answer = super().register(sequence, keys, first)
        for i, key in enumerate(keys):
            old, new = self._pool.registered[key], self._tables[sequence][first + i]
            if old != new and self._pool.blocks[old].holders:
                self._pool.registered[key] = new
                for table in [t for t in self._tables.values() if old in t]:
                    table[first + i] = new
                    self._pool.hold([new])
                    self._pool.release([old])
        return answer


@fault("paged-two-keys", law="conservation", seen=("vllm#49125",))
class TwoKeysForOne(PagedCache):
    """A registered block can be registered again under another key."""

    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int:
        _, table = self._find("register", sequence)
        if len(keys) == 1 and 0 <= first < len(table) and table[first] in self._pool.registered.values():
            self._pool.registered.setdefault(keys[0], table[first])
            return 0
        return super().register(sequence, keys, first)
