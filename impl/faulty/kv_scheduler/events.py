"""Faults of kv_scheduler: events of the pool, of its groups, and of a tier."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_manager.loading import ChildrenFirst
from kvlockstep.impl.variants.scheduler_groups import Announces, AnnouncesTierOfWindow, AnnouncesWithTier
from kvlockstep.reference.kv_manager.announcer import Announcer
from kvlockstep.reference.kv_manager.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvlockstep.reference.kv_manager.groups.announcing import AnnouncingTier
from kvlockstep.reference.kv_manager.groups.in_tier import Block
from kvlockstep.reference.kv_manager.groups.pool import Key as GroupKey
from kvlockstep.reference.kv_manager.manager import Key
from kvlockstep.reference.kv_manager.tier import HOST
from kvlockstep.reference.kv_scheduler.announcing import AnnouncingScheduler
from kvlockstep.reference.kv_scheduler.grouped import StatePool
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler

MET = "vllm 0.33.0, impl/engines/vllm/known.toml"


class Forgets(TieredScheduler):
    """The pool keeps nothing that no request holds, and ends are heard at once, which makes traces short."""

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        self._kv.evict_all()
        super().add(rid, tokens, extra_key, max_tokens, priority)

    def complete(self, id: Hashable, ok: bool) -> None:
        super().complete(id, ok)
        self.poll()


class ForgetsPool(Forgets, AnnouncingScheduler):
    """A scheduler with a tier that brings back what its pool has forgotten."""


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


@fault("sched-events-tier-no-salt", law="event_consistency", seen=(MET,))
class TierNoSalt(AnnouncingScheduler):
    """The events of the tier leave out the extra key."""

    class announcer_type(Announcer):
        def stored(self, key: Key, medium: str | None) -> BlockStored:
            event = super().stored(key, medium)
            return event._replace(extra_key=None) if medium else event


@fault("sched-events-cleared-late", law="event_consistency", seen=(MET,))
class ClearedLate(AnnouncingScheduler):
    """That a reset has cleared the tier is announced behind what the pool stores next."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._late = False

    def reset(self) -> None:
        super().reset()
        self._late = True

    def events(self) -> list[Event]:
        events = super().events()
        if self._late and any(isinstance(event, BlockStored) for event in events):
            self._late = False
            events.append(AllBlocksCleared())
        return events


@fault("sched-group-events-load-silent", law="event_consistency", seen=("tokenspeed#87",))
class GroupLoadSilent(Forgets, AnnouncesWithTier):
    """Blocks of groups that come back from a tier are not announced."""

    def _publish_loaded(self, key: GroupKey, block: Block) -> None:
        told = len(self._kv._events)
        super()._publish_loaded(key, block)
        del self._kv._events[told:]


@fault("sched-group-events-one-pool", law="event_consistency", seen=("shape: no event",))
class OnePool(Announces, StatePool):
    """Only the pool of the first group announces what it stores and evicts."""

    def events(self) -> list[Event]:
        pool = self.groups[0].pool
        return [
            event
            for event in super().events()
            if isinstance(event, AllBlocksCleared) or self.groups[event.group].pool == pool
        ]


class StaleTier(AnnouncingTier):
    """Announces a block of the window with the tokens and the parent of the one in front of it."""

    def stored(self, key: GroupKey) -> BlockStored:
        event = super().stored(key)
        g, extra_key, tokens = key
        before = tokens[: -self._groups[g].block_size]
        return super().stored((g, extra_key, before))._replace(keys=event.keys) if g and before else event


@fault("sched-group-events-tier-stale", law="event_consistency", seen=(MET,))
class StaleTable(AnnouncesTierOfWindow):
    """A block that is stored to a tier is announced as the one that another position had there."""

    announcing_tier = StaleTier


class SilentTier(AnnouncingTier):
    """Announces no eviction."""

    def removed(self, key: GroupKey) -> list[BlockRemoved]:
        return []


@fault("sched-group-events-tier-kept", law="event_consistency", seen=("shape: no event",))
class GroupTierKept(AnnouncesTierOfWindow):
    """An eviction of a group's block from the tier sends no event."""

    announcing_tier = SilentTier

    def _tier_size(self, blocks: int) -> int:
        return 1
