"""kv_scheduler with a tier that announces what can be hit, in the pool and in the tier."""

from __future__ import annotations

from collections.abc import Collection

from kvlockstep.reference.kv_manager.announcer import Announcer
from kvlockstep.reference.kv_manager.events import Event
from kvlockstep.reference.kv_manager.manager import Key
from kvlockstep.reference.kv_manager.tier import HOST
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


class AnnouncingScheduler(TieredScheduler):
    """Meets kv_scheduler.contract.KVSchedulerTarget with events."""

    event_listener = "set"
    announcer_type = Announcer

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._announcer = self.announcer_type(block_size)

    def reset(self) -> None:
        super().reset()
        self._announcer.clear()

    def events(self) -> list[Event]:
        return self._announcer.changes(self._hits())

    def _hits(self) -> dict[str | None, Collection[Key]]:
        """The keys that can be hit in each medium."""
        return {None: self._kv._cached, HOST: self._tier._cached}
