"""Faults of kv_scheduler: events of the pool and of a tier."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_manager.loading import ChildrenFirst
from kvlockstep.reference.kv_manager.announcer import Announcer
from kvlockstep.reference.kv_manager.events import BlockRemoved, BlockStored, Event
from kvlockstep.reference.kv_manager.manager import Key
from kvlockstep.reference.kv_manager.tier import HOST
from kvlockstep.reference.kv_scheduler.announcing import AnnouncingScheduler


class ForgetsPool(AnnouncingScheduler):
    """The pool keeps nothing that no request holds, and ends are heard at once, which makes traces short."""

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        self._kv.evict_all()
        super().add(rid, tokens, extra_key, max_tokens, priority)

    def complete(self, id: Hashable, ok: bool) -> None:
        super().complete(id, ok)
        self.poll()


@fault("sched-events-child-first", law="event_consistency", seen=("tokenspeed#87",))
class ChildFirst(ForgetsPool):
    """Pages that come back from the tier are announced child first."""

    announcer_type = ChildrenFirst


@fault("sched-events-load-silent", law="event_consistency", seen=("shape: no event",))
class LoadSilent(ForgetsPool):
    """Pages that come back from the tier are not announced."""

    def _hits(self) -> dict[str | None, Collection[Key]]:
        hits = super()._hits()
        told = self._announcer._announced.get(None, ())
        return {**hits, None: [key for key in hits[None] if key in told or key not in hits[HOST]]}


@fault("sched-events-tier-kept", law="event_consistency", seen=("shape: no event",))
class TierKept(AnnouncingScheduler):
    """An eviction from the tier sends no event."""

    def _tier_size(self, blocks: int) -> int:
        return 1

    def events(self) -> list[Event]:
        return [event for event in super().events() if not isinstance(event, BlockRemoved) or event.medium is None]


@fault("sched-events-wrong-medium", law="event_consistency", seen=("shape: wrong name",))
class WrongMedium(AnnouncingScheduler):
    """A block that is stored to the tier is announced as one of the pool."""

    class announcer_type(Announcer):
        def stored(self, key: Key, medium: str | None) -> BlockStored:
            return super().stored(key, None)
