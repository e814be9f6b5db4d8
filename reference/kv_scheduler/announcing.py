"""kv_scheduler with a tier that announces what can be hit, in the pool and in the tier.

It compares what can be hit now with what it has announced: removals first, then stores, parents before children.
"""

from __future__ import annotations

from collections.abc import Collection

from kvlockstep.reference.kv_manager.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvlockstep.reference.kv_manager.manager import Key
from kvlockstep.reference.kv_manager.tier import HOST
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


class AnnouncingScheduler(TieredScheduler):
    """Meets kv_scheduler.contract.KVSchedulerTarget with events."""

    event_listener = "set"

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._events: list[Event] = []
        self._announced: dict[str | None, set[Key]] = {None: set(), HOST: set()}

    def reset(self) -> None:
        super().reset()
        self._events = [AllBlocksCleared()]
        self._announced = {None: set(), HOST: set()}

    def events(self) -> list[Event]:
        self._notice(None, self._kv._cached)
        self._notice(HOST, self._tier._cached)
        events, self._events = self._events, []
        return events

    def _notice(self, medium: str | None, keys: Collection[Key]) -> None:
        known = self._announced[medium]
        gone = tuple(known.difference(keys))
        if gone:
            self._events.append(BlockRemoved(gone, medium))
        for key in self._in_order([key for key in keys if key not in known]):
            self._events.append(self._stored(key, medium))
        self._announced[medium] = set(keys)

    def _in_order(self, keys: list[Key]) -> list[Key]:
        return sorted(keys, key=lambda key: len(key[1]))

    def _stored(self, key: Key, medium: str | None) -> BlockStored:
        extra_key, tokens = key
        before = len(tokens) - self.block_size
        parent = (extra_key, tokens[:before]) if before else None
        return BlockStored((key,), parent, tokens[before:], self.block_size, extra_key, medium)
