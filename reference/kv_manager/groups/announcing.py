"""kv_manager with groups that announces what can be hit in each group, in its pools and in a tier."""

from __future__ import annotations

from kvlockstep.reference.kv_manager.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.kv_manager.groups.geometries import (
    Chunked,
    FullAndState,
    FullAndWindow,
    StatePool,
    TwoWindows,
)
from kvlockstep.reference.kv_manager.groups.manager import GroupedManager
from kvlockstep.reference.kv_manager.groups.pool import Key, Pool
from kvlockstep.reference.kv_manager.tier import HOST, Tier


def stored(groups: tuple[Group, ...], key: Key, medium: str | None = None) -> BlockStored:
    """The event of one block. The key of a prefix is the same in every group."""
    group, extra_key, tokens = key
    size = groups[group].block_size
    before = tokens[:-size]
    parent = (extra_key, before) if before else None
    return BlockStored(((extra_key, tokens),), parent, tokens[-size:], size, extra_key, medium, group)


def removed(key: Key, medium: str | None = None) -> BlockRemoved:
    """The event of one block that is gone."""
    group, *prefix = key
    return BlockRemoved((tuple(prefix),), medium, group)


class AnnouncingPool(Pool):
    """Appends what it publishes and evicts to `events`."""

    def __init__(self, blocks: int, groups: tuple[Group, ...], events: list[Event]) -> None:
        super().__init__(blocks)
        self._groups = groups
        self._events = events

    def publish(self, key: Key, block: int) -> None:
        known = len(self.cached)
        super().publish(key, block)
        if len(self.cached) > known:
            self._events.append(self.stored(key))

    def evict(self, block: int) -> None:
        key = self.key_of[block]
        super().evict(block)
        self._events += self.removed(key)

    def stored(self, key: Key) -> BlockStored:
        """The event of one block."""
        return stored(self._groups, key)

    def removed(self, key: Key) -> list[BlockRemoved]:
        """The events of one block that is gone."""
        return [removed(key)]


class AnnouncingTier(Tier):
    """Appends to `events` what can be found in it from now on, and what no more."""

    def __init__(self, units: int, groups: tuple[Group, ...], events: list[Event]) -> None:
        super().__init__(units)
        self._groups = groups
        self._events = events

    def begin_store(self, key: Key) -> int | None:
        before = set(self._cached)
        unit = super().begin_store(key)
        for gone in before.difference(self._cached):
            self._events += self.removed(gone)
        return unit

    def end_store(self, key: Key, ok: bool) -> None:
        super().end_store(key, ok)
        if ok:
            self._events.append(self.stored(key))

    def end_load(self, key: Key, unit: int, ok: bool) -> None:
        before = key in self._cached
        super().end_load(key, unit, ok)
        if before and key not in self._cached:
            self._events += self.removed(key)

    def stored(self, key: Key) -> BlockStored:
        """The event of one block."""
        return stored(self._groups, key, HOST)

    def removed(self, key: Key) -> list[BlockRemoved]:
        """The events of one block that is gone."""
        return [removed(key, HOST)]


class AnnouncingGroups(GroupedManager):
    """Announces each block when it is published and when it is evicted, in this order."""

    event_listener = "set"
    pool_type = AnnouncingPool

    def reset(self) -> None:
        self._events: list[Event] = [AllBlocksCleared()]
        super().reset()

    def _make_pool(self, blocks: int) -> AnnouncingPool:
        return self.pool_type(blocks, self.groups, self._events)

    def events(self) -> list[Event]:
        told = list(self._events)
        self._events.clear()
        return told


class AnnouncingWindow(AnnouncingGroups, FullAndWindow):
    """Full attention and a window, in one pool."""


class AnnouncingWindows(AnnouncingGroups, TwoWindows):
    """Full attention with two windows, of which one has smaller blocks, in one pool."""


class AnnouncingChunks(AnnouncingGroups, Chunked):
    """Full attention and chunks of two blocks."""


class AnnouncingState(AnnouncingGroups, FullAndState):
    """Full attention and a state, in one pool."""


class AnnouncingStates(AnnouncingGroups, StatePool):
    """Full attention, a window, and states in a pool of their own."""
