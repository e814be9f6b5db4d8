"""Announcements: events by comparing what can be hit now with what was announced before."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kvlockstep.reference.kv_manager.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvlockstep.reference.kv_manager.manager import Key


class Announcer:
    """Of each medium removals come first, then stores, parents before children."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._cleared = False
        self._announced: dict[str | None, set[Key]] = {}

    def clear(self) -> None:
        """Nothing can be hit any more."""
        self._cleared = True
        self._announced.clear()

    def changes(self, cached: Mapping[str | None, Collection[Key]]) -> list[Event]:
        """Returns the events since the last call; `cached` are the keys of each medium now."""
        events: list[Event] = [AllBlocksCleared()] if self._cleared else []
        self._cleared = False
        for medium, keys in cached.items():
            known = self._announced.get(medium, set())
            gone = tuple(sorted(known.difference(keys), key=repr))
            events += [BlockRemoved(gone, medium)] if gone else []
            events += [self.stored(key, medium) for key in self.in_order([key for key in keys if key not in known])]
            self._announced[medium] = set(keys)
        return events

    def in_order(self, keys: list[Key]) -> list[Key]:
        """The order in which new keys of a medium are announced."""
        return sorted(keys, key=lambda key: len(key[1]))

    def stored(self, key: Key, medium: str | None) -> BlockStored:
        """The event of one block."""
        extra_key, tokens = key
        before = len(tokens) - self._size
        parent = (extra_key, tokens[:before]) if before else None
        return BlockStored((key,), parent, tokens[before:], self._size, extra_key, medium)
