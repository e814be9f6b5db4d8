"""Transfers under a target: what it has submitted, what it has heard of, and what must hold in between."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.requests.adapter import number
from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.transfers.answers import transfers_of
from kvlockstep.models.requests.transfers.copy_engine import STEPS_TO_SUBMIT, CopyEngine
from kvlockstep.models.requests.transfers.moving import Moving, placed
from kvlockstep.models.requests.transfers.places import Block, Place, Places
from kvlockstep.models.requests.transfers.traits import TransferTraits
from kvlockstep.properties import transfers as laws
from kvlockstep.properties.kv_manager.listener import Fetched
from kvlockstep.properties.law import ERROR_CONTRACT
from kvlockstep.reference.kv.memory import POISON
from kvlockstep.reference.kv.transfers import TierUnits, Transfer

# A transfer that is in flight for so many batches has been starved.
LONG = 3


class Transfers(CopyEngine):
    """The transfers of one target, and the memory of its tiers. Methods raise Divergence if a law does not hold."""

    def __init__(
        self, adapter: Any, traits: TransferTraits, places: Places, checks: Checks, goals_met: Counter[str]
    ) -> None:
        super().__init__(adapter, traits, places, checks, goals_met)
        self._polls = 0
        self._stepped = False
        self._free_in_steps: deque[set[Any]] = deque([set()] * STEPS_TO_SUBMIT, STEPS_TO_SUBMIT)
        self.quiet = True

    def submitted(self) -> list[Transfer]:
        """Asks what the target has submitted since the last time."""
        return transfers_of(self._adapter.transfers)

    def launched(self, names: list[str], blocks: set[Block]) -> None:
        """A batch is in flight that reads and writes `blocks`."""
        self._batches.append((names, blocks, self._own))
        self._polls, self._stepped = 0, self.traits.in_steps
        self.loaded_inside.clear()
        self.races.launched(self.unended)
        self.delivery.step()
        for moving in self.moving.values():
            moving.batches += 1
            self._goals_met["starved"] += moving.batches == LONG
        if names:
            self.forget_loads()

    def started(self, name: str, hit: int) -> None:
        """A request begins with a hit of so many tokens."""
        self._goals_met["part_loaded"] += 0 < len(self.loaded_for(name)) < hit // self.traits.block_size

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
        """Returns the requests whose load has failed, which the target hears of at the next poll at the latest."""
        return {rid for moving in self.moving.values() if moving.failed for rid in moving.transfer.rids}

    def gone(self, name: str, goal: str | None = "abort_loading") -> None:
        """A request ends or is preempted, wherever it is; `goal` counts those that a load is for."""
        self._polls = 0
        if goal is not None:
            self._goals_met[goal] += any(name in moving.transfer.rids for moving in self.moving.values())
        self.forget_loads()

    def heard(self) -> None:
        """The target has had the chance to hear of everything that it was told."""
        self._polls += 1
        self.delivery.step()
        self._stepped = self.traits.in_steps
        self.moving = {id: moving for id, moving in self.moving.items() if not moving.told}
        self._fresh_loads.clear()
        self._ended_loads.clear()

    def unpoisoned(self, free: list[Any]) -> list[Any]:
        """Returns the free list without what a transfer still reads: a target may fence what it has freed.

        With `in_steps` it may even submit a store of what it has freed in the step before.
        """
        if self.traits.in_steps:
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
        for owed, missing in self.delivery.due():
            self._checks.check(laws.delivery, owed.rid, missing, owed.size, owed.where)
        views = {name: self._view(name) for name in self._sizes}
        reserved = self._check_targets(free, views, held) if self.moving else set()
        stored = {place.unit for m in self.unended if m.transfer.kind == "store" for place in m.sources}
        self._goals_met["store_outlives"] += not stored <= held
        for name, view in views.items():
            units = [*view.free, *view.cached, *view.storing]
            self._checks.check(laws.tier_accounting, name, units, self._sizes[name])
        self.races.settled(views, not stored <= held and not limbo)
        # In steps, what is decided in one of them is submitted in the next.
        self.quiet = not self.moving and (self._polls >= STEPS_TO_SUBMIT or not self.traits.in_steps)
        if idle and self.quiet:
            pinned = [str(Place(name, unit)) for name, view in views.items() for unit in view.pinned]
            self._checks.check(laws.quiescence, pinned, limbo)
        return reserved

    def _check_targets(self, free: Sequence[Any], views: Mapping[str, TierUnits], held: Set[Block]) -> set[Block]:
        """Checks that targets belong to what is in flight. Returns the blocks among them that nobody holds."""
        unended = self.unended
        unlanded = [moving for moving in unended if not moving.landed]
        targets: dict[str | None, set[Block]] = {}
        for moving in unlanded:
            for place in moving.targets:
                targets.setdefault(place.tier, set()).add(place.unit)
        for tier, units in targets.items():
            owners: dict[str, Collection[Any]]
            if tier is None:
                owners = {"free": self.places.blocks_of(free)}
            else:
                owners = {"free": views[tier].free, "cached": views[tier].cached}
            for owner, owned in owners.items():
                # One evaluation for all that are right, below: this runs at every step.
                wrong = units.intersection(owned)
                for moving, place in ((m, p) for m in unlanded for p in m.targets) if wrong else ():
                    if place.tier == tier and place.unit in wrong:
                        self._checks.check(laws.target_owned, str(moving), str(place), owner)
        self._checks.check(laws.target_owned, "", "", "")
        return targets.get(None, set()) - held

    def limbo(self, held: Set[Block]) -> int:
        """Returns how many slots nobody holds that are not available yet: as the target says, or at most so many."""
        if self.traits.late_release:
            return number(self._adapter.limbo)
        return len(self.unheard(held)) * self.traits.block_size

    def unheard(self, held: Set[Block]) -> set[Block]:
        """Returns the blocks that nobody holds and that need not be available before the end of a transfer is heard."""
        return {p.unit for m in self.moving.values() for p in (*m.sources, *m.targets) if p.tier is None} - held

    def came_back(self) -> list[list[tuple[int | None, Sequence[int]]]]:
        """Returns the loads that have ended well since the last poll, each with the prefixes of its blocks."""
        return [[prefix for _, prefix in self._prefixes(moving)] for moving in self._ended_loads]

    def fetched(self) -> list[Fetched]:
        """Returns what the loads read that have started since the last time, but for what others have filled."""
        fresh, self._fresh_loads = self._fresh_loads, []
        loads = [moving for moving in fresh if moving.transfer.tier != self.traits.peer]
        return [Fetched(tokens, key, m.transfer.tier, g) for m in loads for g, (key, tokens) in self._prefixes(m)]

    def on_their_way(self, submitted: Sequence[Transfer]) -> list[tuple[int | None, Sequence[int]]]:
        """Returns the prefixes of blocks that moves bring for somebody; those of `submitted` have not started yet."""
        fetching = [one for one in submitted if one.kind == "move" and one.rids]
        fresh = [placed(one, self.traits, self.places, self.moving, self._adapter.transfers) for one in fetching]
        for moving in fresh:
            moving.contents = list(map(self.places.read, moving.sources))
        flying = [moving for moving in self.moving.values() if moving.transfer.kind == "move" and moving.transfer.rids]
        return [prefix for moving in (*flying, *fresh) for _, prefix in self._prefixes(moving)]

    def cached(self) -> dict[str, int]:
        """Returns for each tier how many units a hit may find."""
        return {name: len(self._view(name).cached) for name in self._sizes}

    def _prefixes(self, moving: Moving) -> list[tuple[int, tuple[int | None, Sequence[int]]]]:
        """The group of each block that is KV, with its extra key and all tokens up to its end."""
        places = self.places
        found = ((places.ending(content)[0], places.prefix(content)) for content in moving.contents)
        return [(group, prefix) for group, prefix in found if prefix is not None]

    def lose_any(self) -> bool:
        """Returns whether some tier may lose a unit."""
        return any(map(self.traits.may_lose, self._sizes))

    def losable(self) -> list[Place]:
        """Returns the units that a hit may find, and that nothing reads: their tier may lose them."""
        losing = filter(self.traits.may_lose, self._sizes)
        found = [Place(name, unit) for name in losing for unit in self._view(name).cached]
        stored, lost = self.places.stored, self.places.lost
        return [place for place in found if place in stored and place not in lost and not self._is_read(place)]

    def offered(self, units: Sequence[int | None], contents: Sequence[Any]) -> None:
        """Somebody else has filled units of the peer with these blocks, as far as the target has taken them."""
        for unit, content in zip(units, contents, strict=True):
            if unit is None:
                continue
            place, said = Place(self.traits.peer, unit), "an offer"
            if not 0 <= unit < self._sizes.get(self.traits.peer or "", 0):
                raise Divergence(ERROR_CONTRACT.id, f"offer names {place}, which is not there")
            for other in self.unended:
                owned = place in other.targets and not other.landed
                self._checks.check(laws.target_owned, said, str(place), f"a target of {other}" * owned)
            if self.places.read(place) != content:
                read = next((str(other) for other in self.unended if place in other.sources and not other.landed), "")
                self._checks.check(laws.source_stable, read, str(place), "an offer overwrites it" * bool(read))
            self.places.write(place, content)
            self.delivery.sent(self.places.identity(content))
            self._offered.add(place)

    def reset(self) -> None:
        """Nothing that a tier holds is right any more."""
        self._goals_met["reset_in_flight"] += bool(self.unended)
        read = {place for moving in self.moving.values() if not moving.landed for place in moving.sources}
        for place in self.places.stored.keys() - read:
            self.places.fill(place, POISON)
        self.places.lost.clear()
        self._offered.clear()
        self._moved.clear()
        self.delivery.reset()
        for moving in self.moving.values():
            moving.stale = True
        self.forget_loads()

    def state(self) -> Any:
        """What the fingerprint of a state has of them."""
        kinds = [(m.transfer.kind, *m.sources, *m.targets, m.landed, m.told, m.stale) for m in self.moving.values()]
        return tuple(kinds), self.places.state(), tuple(tuple(map(tuple, self._view(name))) for name in self._sizes)
