"""Schedulers with groups that keep the contract in a way of their own. No law may blame them."""

from __future__ import annotations

from typing import Any

from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.reference.kv_manager.events import Event
from kvlockstep.reference.kv_manager.groups.announcing import AnnouncingGroups, AnnouncingTier
from kvlockstep.reference.kv_manager.groups.manager import GroupedManager
from kvlockstep.reference.kv_manager.groups.request import Request
from kvlockstep.reference.kv_manager.tier import HOST
from kvlockstep.reference.kv_scheduler.contract import Item
from kvlockstep.reference.kv_scheduler.grouped import (
    Chunked,
    FullAndWindow,
    GroupedScheduler,
    StatePool,
    TwoPools,
    TwoWindows,
)
from kvlockstep.reference.kv_scheduler.peered_groups import PeeredWindows
from kvlockstep.reference.kv_scheduler.scheduler import Job
from kvlockstep.reference.kv_scheduler.tiered_groups import TieredGroups, TieredStates, TieredWindow


class SlidesAtSchedule(FullAndWindow):
    """Lets windows slide when the next batch is decided, before it looks for room, and not when one is back."""

    frees_window = False

    class manager(GroupedManager):
        def _slide(self, g: int, request: Request) -> None:
            pass

        def reserve(self, rid: str, n: int) -> bool:
            for g in range(len(self.groups)):
                super()._slide(g, self._live[rid])
            return super().reserve(rid, n)


class RowsKeepSlid(FullAndWindow):
    """The worker is told of new blocks only, so that its rows still name what a window has left."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._rows: dict[tuple[str, int], list[int | None]] = {}

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        super()._preempt(job, preempted)
        self._forget(job.rid)

    def reset(self) -> None:
        super().reset()
        self._rows.clear()

    def _item(self, job: Job, n: int) -> Item:
        if job.computed == 0:
            self._forget(job.rid)
        return super()._item(job, n)

    def _table(self, job: Job, g: int, stop: int) -> list[int | None]:
        row = self._rows.setdefault((job.rid, g), [])
        row += self._kv.slots(job.rid, g)[len(row) :]
        return row[:stop]

    def _forget(self, rid: str) -> None:
        for g in range(len(self.groups)):
            self._rows.pop((rid, g), None)


class CannotTell(TwoPools):
    """Names in its tables what it holds, and does not say what it keeps from being taken."""

    def held(self, rid: str, group: int) -> None:  # type: ignore[override]
        return None


class CutsAtTheGrid(StatePool):
    """Ends each chunk of a prompt where a state is published."""

    def _wanted(self, job: Job) -> int:
        size = self.groups[2].block_size
        wanted = super()._wanted(job)
        return min(wanted, size - job.computed % size) if len(job.tokens) - job.computed > 1 else wanted


class Announces(GroupedScheduler):
    """Its manager announces what can be hit in each group."""

    event_listener = "set"
    manager = AnnouncingGroups

    def events(self) -> list[Event]:
        events: list[Event] = self._kv.events()
        return events


class AnnouncesWindow(Announces, FullAndWindow):
    """Full attention and a window, in one pool."""


class AnnouncesWindows(Announces, TwoWindows):
    """Full attention with two windows, of which one has smaller blocks, in one pool."""


class AnnouncesStates(Announces, StatePool):
    """Full attention, a window, and states in a pool of their own."""


class AnnouncesInFlight(Announces, FullAndWindow, OverlapScheduler):
    """Full attention and a window, with a batch in flight."""


class AnnouncesWithTier(Announces, TieredWindow):
    """Full attention and a window, over a tier of which nothing is announced."""

    silent_tiers = True


class AnnouncesTier(Announces, TieredGroups):
    """Announces what its tier has as well."""

    announcing_tier = AnnouncingTier

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        self._announce_tier()

    def reset(self) -> None:
        super().reset()
        self._announce_tier()

    def _announce_tier(self) -> None:
        self._tier = self.announcing_tier(self.tiers[HOST], self.groups, self._kv._events)


class AnnouncesTierOfWindow(AnnouncesTier, TieredWindow):
    """Full attention and a window, announced in pool and tier."""


class AnnouncesTierOfStates(AnnouncesTier, TieredStates):
    """Full attention, a window, and states in a pool of their own, announced in pools and tier."""


class AnnouncesOverPeer(Announces, PeeredWindows):
    """Two windows, loaded from what another instance has: blocks may come whose parents this pool never had."""


GROUP_VARIANTS = {
    "full-and-window": FullAndWindow,
    "two-windows": TwoWindows,
    "chunked": Chunked,
    "two-pools": TwoPools,
    "slides-at-schedule": SlidesAtSchedule,
    "rows-keep-slid": RowsKeepSlid,
    "cannot-tell": CannotTell,
    "cuts-at-the-grid": CutsAtTheGrid,
    "announces-window": AnnouncesWindow,
    "announces-windows": AnnouncesWindows,
    "announces-states": AnnouncesStates,
    "announces-in-flight": AnnouncesInFlight,
    "announces-with-tier": AnnouncesWithTier,
    "announces-tier-of-window": AnnouncesTierOfWindow,
    "announces-tier-of-states": AnnouncesTierOfStates,
    "announces-over-peer": AnnouncesOverPeer,
}
