"""Faults of kv_manager with groups: KV cache events."""

from __future__ import annotations

from typing import cast

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.variants.group_loading import AnnouncesTierOfWindow
from kvlockstep.reference.kv_manager.events import BlockRemoved, BlockStored, Event
from kvlockstep.reference.kv_manager.groups.announcing import (
    AnnouncingPool,
    AnnouncingState,
    AnnouncingStates,
    AnnouncingTier,
    AnnouncingWindow,
)
from kvlockstep.reference.kv_manager.groups.pool import Key
from kvlockstep.reference.kv_manager.groups.request import Request


@fault("kv-group-event-skips", law="event_consistency", seen=("vllm#44451",))
class TokensOfSkipped(AnnouncingState):
    """The event of a state has all tokens since the last one, and the key of its own block alone."""

    def commit(self, rid: str, n: int) -> None:
        before, told = self._live[rid].computed, len(self._events)
        super().commit(rid, n)
        for i, event in enumerate(self._events[told:], told):
            if isinstance(event, BlockStored) and event.group == 1:
                self._events[i] = self._with_skipped(event, before)

    def _with_skipped(self, event: BlockStored, before: int) -> BlockStored:
        extra_key, tokens = cast("tuple[int | None, tuple[int, ...]]", event.keys[0])
        first = before // self.block_size * self.block_size
        return event._replace(parent=(extra_key, tokens[:first]) if first else None, tokens=tokens[first:])


class SizeOfFirst(AnnouncingPool):
    """Gives every block the size that blocks have in the first group."""

    def stored(self, key: Key) -> BlockStored:
        return super().stored(key)._replace(block_size=self._groups[0].block_size)


@fault("kv-group-event-size", law="event_consistency", seen=("vllm#44103",))
class OneSize(AnnouncingStates):
    """An event has the block size of the first group, whatever the group."""

    pool_type = SizeOfFirst


@fault("kv-group-event-no-group", law="event_consistency", seen=("vllm#44103",))
class NoGroup(AnnouncingWindow):
    """No event names a group, so all are those of the first."""

    def events(self) -> list[Event]:
        return [e._replace(group=0) if isinstance(e, BlockStored | BlockRemoved) else e for e in super().events()]


class RemovesEverywhere(AnnouncingPool):
    """Announces a block as gone from every group."""

    def removed(self, key: Key) -> list[BlockRemoved]:
        return [event._replace(group=g) for event in super().removed(key) for g in range(len(self._groups))]


@fault("kv-group-event-removed-in-all", law="event_consistency", seen=("mutant",))
class RemovedInAll(AnnouncingWindow):
    """A block that one group evicts is announced as gone from all."""

    pool_type = RemovesEverywhere


@fault("kv-group-event-slid", law="event_consistency", seen=("mutant",))
class SlidIsGone(AnnouncingWindow):
    """A block that slides off a window is announced as gone, though it can still be hit."""

    def _slide(self, g: int, request: Request) -> None:
        table = list(request.tables[g])
        super()._slide(g, request)
        for place, block in enumerate(table):
            if block is not None and request.tables[g][place] is None and block in self._pool(g).key_of:
                _, *prefix = self._pool(g).key_of[block]
                self._events.append(BlockRemoved((tuple(prefix),), group=g))


class ForgetsStates(AnnouncingPool):
    """Says nothing of a state that is evicted."""

    def removed(self, key: Key) -> list[BlockRemoved]:
        return [event for event in super().removed(key) if self._groups[event.group].kind != "state"]


@fault("kv-group-event-state-evicted", law="event_consistency", seen=("mutant",))
class StateEvicted(AnnouncingState):
    """Eviction of a state sends no BlockRemoved event."""

    pool_type = ForgetsStates


@fault("kv-group-event-state-between", law="event_consistency", seen=("mutant",))
class StateBetween(AnnouncingState):
    """A state is announced for every block of a step, though only the last one was saved."""

    def commit(self, rid: str, n: int) -> None:
        told = len(self._events)
        super().commit(rid, n)
        stored = [e for e in self._events[told:] if isinstance(e, BlockStored)]
        states = {e.keys for e in stored if e.group == 1}
        self._events += [e._replace(group=1) for e in stored if e.group == 0 and states and e.keys not in states]


class TierOfFirst(AnnouncingTier):
    """Announces every block as one of the first group."""

    def stored(self, key: Key) -> BlockStored:
        return super().stored(key)._replace(group=0)


@fault("kv-group-event-tier-no-group", law="event_consistency", seen=("vllm#44103",))
class TierWithoutGroups(AnnouncesTierOfWindow):
    """No event of the tier names a group, so all its blocks are those of the first."""

    announcing_tier = TierOfFirst
