"""Transfers under a kv_scheduler: what it has submitted, what it has heard of, and what must hold in between."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence, Set
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.kv_scheduler.copy_engine import STEPS_TO_SUBMIT, CopyEngine
from kvlockstep.models.kv_scheduler.places import Block, Place, Places
from kvlockstep.models.requests.adapter import answered, taken
from kvlockstep.models.requests.checks import Checks
from kvlockstep.properties import transfers as laws
from kvlockstep.properties.law import ERROR_CONTRACT
from kvlockstep.reference.kv.memory import POISON
from kvlockstep.reference.kv_scheduler.contract import SchedulerTraits
from kvlockstep.reference.kv_scheduler.transfers import TierUnits, Transfer

# A transfer that is in flight for so many batches has been starved.
LONG = 3


class Transfers(CopyEngine):
    """The transfers of one scheduler, and the memory of its tiers. Methods raise Divergence if a law does not hold."""

    def __init__(
        self, adapter: Any, traits: SchedulerTraits, places: Places, checks: Checks, goals_met: Counter[str]
    ) -> None:
        super().__init__(adapter, traits, places, checks, goals_met)
        self._polls = 0
        self._stepped = False
        self._free_in_steps: deque[set[Any]] = deque([set()] * STEPS_TO_SUBMIT, STEPS_TO_SUBMIT)
        self.quiet = True

    def submitted(self) -> list[Transfer]:
        """Asks what the scheduler has submitted since the last time."""
        found = answered(self._adapter.transfers)
        return taken(lambda: [Transfer(*one) for one in found], found, self._adapter.transfers, "transfers")

    def launched(self, names: list[str], blocks: set[Block]) -> None:
        """A batch is in flight that reads and writes `blocks`."""
        self._batches.append((names, blocks, self._own))
        self._polls, self._stepped = 0, self._traits.in_steps
        self.delivery.step()
        for moving in self.moving.values():
            moving.batches += 1
            self._goals_met["starved"] += moving.batches == LONG
        if names:
            self._loads.clear()

    def loaded_for(self, name: str) -> set[Block]:
        """Returns the blocks that were loaded for a request that starts now, and forgets them."""
        return self._loaded.pop(name, set())

    def returned(self) -> bool:
        """The oldest batch is back, and with it the ends of its own loads. Returns whether one of them had failed."""
        self._polls = 0
        own = self._batches.popleft()[2]
        for id in own:
            self.moving.pop(id, None)
        failed = not set(own).isdisjoint(self.failed_unheard)
        self.failed_unheard = [id for id in self.failed_unheard if id not in own]
        return failed

    def failed(self) -> set[str]:
        """Returns the requests whose load has failed, which the scheduler hears of at the next poll at the latest."""
        return {rid for moving in self.moving.values() if moving.failed for rid in moving.transfer.rids}

    def gone(self, name: str) -> None:
        """A request is aborted."""
        self._polls = 0
        self._goals_met["abort_loading"] += any(name in moving.transfer.rids for moving in self.moving.values())
        self._loads.clear()

    def heard(self) -> None:
        """The scheduler has had the chance to hear of everything that it was told."""
        self._polls += 1
        self.delivery.step()
        self._stepped = self._traits.in_steps
        self.moving = {id: moving for id, moving in self.moving.items() if not moving.told}

    def unpoisoned(self, free: list[Any]) -> list[Any]:
        """Returns the free list without what a transfer still reads: a scheduler may fence what it has freed.

        With `in_steps` it may even submit a store of what it has freed in the step before.
        """
        if self._traits.in_steps:
            free = [slot for slot in free if all(slot in then for then in self._free_in_steps)]
        read = {
            place.unit for moving in self.unended if not moving.landed for place in moving.sources if not place.tier
        }
        return self.places.without(free, read) if read else free

    def under_store(self) -> set[Block]:
        """Returns the blocks that a store still reads."""
        stores = [m for m in self.unended if m.transfer.kind == "store" and not m.landed]
        return {place.unit for moving in stores for place in moving.sources}

    def settle(self, free: Sequence[Any], held: Set[Block], limbo: int, idle: bool) -> set[Block]:
        """Checks what holds between the operations; `idle` if nothing is live or in flight.

        `limbo` counts what nobody holds and is not available yet. Returns the blocks of it that surely are not: those
        that transfers still write.
        """
        if self._stepped:
            self._free_in_steps.append(set(free))
            self._stepped = False
        free_blocks = self.places.blocks_of(free)
        unlanded = [moving for moving in self.unended if not moving.landed]
        reserved = {p.unit for m in unlanded for p in m.targets if p.tier is None} - held
        for name, missing in self.delivery.due():
            self._checks.check(laws.delivery, name, missing, self._traits.block_size)
        views = {name: self._view(name) for name in self._sizes}
        for moving in unlanded:
            for place in moving.targets:
                # One evaluation for all that are right, below: this runs at every step.
                if owner := _owner(place, free_blocks, views):
                    self._checks.check(laws.target_owned, str(moving), str(place), owner)
        for moving in self.unended:
            if moving.transfer.kind == "store":
                self._goals_met["store_outlives"] += any(place.unit not in held for place in moving.sources)
        if self.moving:
            self._checks.check(laws.target_owned, "", "", "")
        for name, view in views.items():
            units = [*view.free, *view.cached, *view.storing]
            self._checks.check(laws.tier_accounting, name, units, self._sizes[name])
        # In steps, what is decided in one of them is submitted in the next.
        self.quiet = not self.moving and (self._polls >= STEPS_TO_SUBMIT or not self._traits.in_steps)
        if idle and self.quiet:
            pinned = [str(Place(name, unit)) for name, view in views.items() for unit in view.pinned]
            self._checks.check(laws.quiescence, pinned, limbo)
        return reserved

    def unheard(self, held: Set[Block]) -> set[Block]:
        """Returns the blocks that nobody holds and that need not be available before the end of a transfer is heard."""
        return {p.unit for m in self.moving.values() for p in (*m.sources, *m.targets) if p.tier is None} - held

    def losable(self) -> list[Place]:
        """Returns the units that a hit may find, and that nothing reads: their tier may lose them."""
        found = [Place(name, unit) for name in self._sizes for unit in self._view(name).cached]
        stored, lost = self.places.stored, self.places.lost
        return [place for place in found if place in stored and place not in lost and not self._is_read(place)]

    def offered(self, units: Sequence[int | None], blocks: Sequence[Sequence[int]]) -> None:
        """Somebody else has filled units of the peer with these blocks, as far as the scheduler has taken them."""
        for unit, stamps in zip(units, blocks, strict=True):
            if unit is None:
                continue
            place, said = Place(self._traits.peer, unit), "an offer"
            if not 0 <= unit < self._sizes.get(self._traits.peer or "", 0):
                raise Divergence(ERROR_CONTRACT.id, f"offer names {place}, which is not there")
            for other in self.unended:
                owned = place in other.targets and not other.landed
                self._checks.check(laws.target_owned, said, str(place), f"a target of {other}" * owned)
            if self.places.read(place) != list(stamps):
                read = next((str(other) for other in self.unended if place in other.sources and not other.landed), "")
                self._checks.check(laws.source_stable, read, str(place), "an offer overwrites it" * bool(read))
            self.places.write(place, stamps)
            self.delivery.sent(stamps)
            self._offered.add(place)

    def reset(self) -> None:
        """Nothing that a tier holds is right any more."""
        self._goals_met["reset_in_flight"] += bool(self.unended)
        read = {place for moving in self.moving.values() if not moving.landed for place in moving.sources}
        for place in self.places.stored.keys() - read:
            self.places.fill(place, POISON)
        self.places.lost.clear()
        self._offered.clear()
        self.delivery.reset()
        for moving in self.moving.values():
            moving.stale = True
        self._loads.clear()

    def state(self) -> Any:
        """What the fingerprint of a state has of them."""
        kinds = [(m.transfer.kind, *m.sources, *m.targets, m.landed, m.told, m.stale) for m in self.moving.values()]
        return tuple(kinds), self.places.state(), tuple(tuple(map(tuple, self._view(name))) for name in self._sizes)


def _owner(place: Place, free_blocks: set[Block], views: dict[str, TierUnits]) -> str:
    """Whose a target is, if it is not its transfer's."""
    if place.tier is None:
        return "free" if place.unit in free_blocks else ""
    view = views[place.tier]
    return "free" if place.unit in view.free else "cached" if place.unit in view.cached else ""
