"""Faults of radix_cache: locks and handles."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.radix_cache.nodes import Nodes, with_tree
from kvlockstep.reference.radix_cache.contract import StaleHandle
from kvlockstep.reference.radix_cache.tree import Entry, Handle, Prefix, RadixTree


@fault("radix-lock-parent", law="refcount_exact", seen=("mini-sglang#52",), make=with_tree)
class LocksFromTheParent(RadixTree):
    """Locking starts at the parent, so the matched leaf itself is never locked."""

    def lock(self, handle: Handle) -> None:
        super().lock(handle)
        self._undo(handle, 1)

    def unlock(self, handle: Handle) -> None:
        self.check_locked(handle)
        self._undo(handle, -1)
        super().unlock(handle)

    def _undo(self, handle: Handle, locks: int) -> None:
        if handle.prefix:
            self._entries[handle.prefix].locks -= locks


@fault("radix-unlock-twice", law="no_double_free", seen=("LMCache#2559",), make=with_tree)
class UnlocksTooOften(RadixTree):
    """Unlocking a handle that is not locked is silently accepted."""

    def unlock(self, handle: Handle) -> None:
        self.check(handle)
        if handle.locks:
            super().unlock(handle)

    def check_locked(self, handle: Handle) -> None:
        self.check(handle)


@fault("radix-unlock-half", law="atomicity", seen=("seed 001",), make=with_tree)
class UnlocksBeforeItAsserts(RadixTree):
    """A refused unlock has already lowered lock counts on the path."""

    def unlock(self, handle: Handle) -> None:
        self.check(handle)
        if not handle.locks:
            for prefix in self._path(handle.prefix):
                self._entries[prefix].locks -= 1
        super().unlock(handle)


@fault("radix-unlock-age", law="eviction_order", seen=("seed 001",), make=with_tree)
class UnlockKeepsAge(RadixTree):
    """Unlocking does not refresh the path."""

    def unlock(self, handle: Handle) -> None:
        ages = {prefix: self._entries[prefix].used for prefix in self._path(handle.prefix) if prefix in self._entries}
        super().unlock(handle)
        for prefix, age in ages.items():
            self._entries[prefix].used = age


@fault("radix-handle-prefix", law="no_double_free", seen=("seed 001",), make=with_tree)
class HandleByPrefix(RadixTree):
    """A stale handle becomes valid again when its prefix is cached again."""

    def check(self, handle: Handle) -> None:
        if handle.prefix and handle.prefix not in self._entries:
            raise StaleHandle("evicted")


@fault("radix-handle-left", law="no_double_free", seen=("seed 001",), make=with_tree)
class LocksWhatIsLeft(RadixTree):
    """A stale handle is accepted and locks whatever is left of its path."""

    def check(self, handle: Handle) -> None:
        return

    def lock(self, handle: Handle) -> None:
        handle.prefix = handle.prefix[: self.cached_length(handle.prefix)]
        super().lock(handle)

    def unlock(self, handle: Handle) -> None:
        handle.prefix = handle.prefix[: self.cached_length(handle.prefix)]
        super().unlock(handle)


@fault("radix-locks-run", law="refcount_exact", seen=("bytedance-iaas/sglang#508",), make=with_tree)
class LocksTheRun(Nodes):
    """A lock covers the whole node of its prefix, and after a split the unlock covers less."""

    def lock(self, handle: Handle) -> None:
        super().lock(handle)
        for entry in self._rest_of_node(handle.prefix):
            entry.locks += 1

    def unlock(self, handle: Handle) -> None:
        super().unlock(handle)
        for entry in self._rest_of_node(handle.prefix):
            entry.locks -= 1

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        return RadixTree.match(self, sequence)

    def _rest_of_node(self, prefix: Prefix) -> list[Entry]:
        node = self._node_of.get(self._entries[prefix]) if prefix else None
        longer = [e for p, e in self._entries.items() if p[: len(prefix)] == prefix and len(p) > len(prefix)]
        return [entry for entry in longer if node is not None and self._node_of[entry] is node]


@fault("radix-lock-skips", law="no_double_free", seen=("sglang#27147",), make=with_tree)
class LocksWhatIsThere(RadixTree):
    """A lock skips evicted pages, but the unlock lowers their count when they are cached again."""

    def check(self, handle: Handle) -> None:
        return

    def lock(self, handle: Handle) -> None:
        handle.locks += 1
        for prefix in self._path(handle.prefix):
            if prefix in self._entries:
                self._entries[prefix].locks += 1

    def unlock(self, handle: Handle) -> None:
        self.check_locked(handle)
        handle.locks -= 1
        for prefix in self._path(handle.prefix):
            if prefix in self._entries:
                self._entries[prefix].locks -= 1
        self._use(handle.prefix[: self.cached_length(handle.prefix)])
