"""A tier over flat lists: what is known of a unit stands at its number, and every call costs what it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Literal, NamedTuple

from kvlockstep.impl.kv_tier.policies import ARC, LRU, Policy
from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.kv_tier.contract import (
    HIT,
    MISS,
    PENDING,
    AllChunksCleared,
    ChunkRemoved,
    ChunkStored,
    Event,
    Key,
    LoadPlan,
    StorePlan,
)


class InFlight(NamedTuple):
    """A plan in flight: `epoch` is the number of resets before it."""

    units: dict[Key, int]
    loads: bool
    epoch: int


class Tier:
    """`units` units under a policy. `events=False` where nobody asks for events, which would pile up.

    `_key`, `_holds` and `_stored` are indexed by unit: the key of its chunk, how many plans and pins hold it, and
    whether the bytes are there. A unit is free, or held, or in the policy, or has a chunk that is being stored.

    Raises InvalidArgument if `units` is less than 1.
    """

    extra_key = can_pin = can_reset = reset_in_flight = True

    def __init__(self, units: int, policy: Callable[[int], Policy] = LRU, events: bool = True) -> None:
        if units < 1:
            raise InvalidArgument(f"units={units}: a tier has at least one unit")
        self.total = units
        self.announces = events
        self._policy = policy(units)
        self._make_policy = policy
        self._free = list(range(units - 1, -1, -1))
        self._unit: dict[Key, int] = {}
        self._key: list[Key | None] = [None] * units
        self._holds = [0] * units
        self._stored = bytearray(units)
        self._plans: dict[Hashable, InFlight] = {}
        self._pins: dict[str, set[int]] = {}
        self._events: list[Event] = []
        self._next = 0
        self._epoch = 0

    def lookup(self, key: Key, owner: str) -> Literal["miss", "pending", "hit"]:
        unit = self._unit.get(key)
        if unit is None:
            return MISS
        if not self._stored[unit]:
            return PENDING
        self._policy.use(unit)
        return HIT

    def pin(self, key: Key, owner: str) -> Literal["miss", "pending", "hit"]:
        answer = self.lookup(key, owner)
        if answer == HIT:
            unit, pins = self._unit[key], self._pins.setdefault(owner, set())
            if unit not in pins:
                pins.add(unit)
                self._hold(unit)
        return answer

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        known = self._unit
        new = [key for key in keys if key not in known]
        lacking = len(new) - len(self._free)
        evicted = self._make_room(lacking, keys) if lacking > 0 else ()
        if evicted is None:
            return None
        units = {}
        for key in new:
            unit = self._free.pop()
            units[key] = known[key] = unit
            self._key[unit] = key
            self._holds[unit] = 1
        return StorePlan(self._begin(units, loads=False), units, evicted)

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        units = {key: self._unit[key] for key in keys}
        pins = self._pins.get(owner, set())
        for unit in units.values():
            # The pin of the lookup becomes the plan's.
            if unit in pins:
                pins.discard(unit)
            else:
                self._hold(unit)
        return LoadPlan(self._begin(units, loads=True), units)

    def complete(self, plan: Hashable, ok: bool) -> None:
        done = self._plans.pop(plan, None)
        if done is None:
            return
        if not done.loads and done.epoch == self._epoch:
            self._end_store(done.units, ok)
        for unit in done.units.values():
            self._unhold(unit)

    def touch(self, keys: Sequence[Key]) -> None:
        for key in keys:
            unit = self._unit.get(key)
            if unit is not None:
                self._policy.use(unit)

    def release(self, owner: str) -> None:
        for unit in self._pins.pop(owner, ()):
            self._unhold(unit)

    def reset(self) -> None:
        self._drop_pins()
        for unit in self._unit.values():
            self._key[unit] = None
            self._stored[unit] = 0
            if not self._holds[unit]:
                self._free.append(unit)
        self._unit.clear()
        self._policy = self._make_policy(self.total)
        self._epoch += 1
        if self.announces:
            self._events.append(AllChunksCleared())

    def avail(self) -> int:
        return len(self._free) + len(self._policy)

    def free_units(self) -> list[int]:
        return list(self._free)

    def events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _begin(self, units: dict[Key, int], loads: bool) -> int:
        self._next += 1
        self._plans[self._next] = InFlight(units, loads, self._epoch)
        return self._next

    def _end_store(self, units: dict[Key, int], ok: bool) -> None:
        """The chunks are there, or gone; the plan still holds their units."""
        for key, unit in units.items():
            if ok:
                self._stored[unit] = 1
                # In and out of the policy, which has to hear of a chunk whose key it may know.
                self._policy.stored(key, unit)
                self._policy.hold(unit)
            else:
                self._forget(key, unit)
        if ok and self.announces and units:
            self._events.append(ChunkStored(tuple(units)))

    def _make_room(self, lacking: int, keys: Sequence[Key]) -> tuple[Key, ...] | None:
        """Evicts as many chunks, none of them of `keys`. Returns their keys, or None with nothing changed."""
        policy, of = self._policy, self._key
        if lacking > len(policy):
            return None
        spared = {self._unit[key] for key in keys if key in self._unit}
        units = policy.victims(lacking, spared)
        if len(units) < lacking:
            return None
        evicted = tuple(key for key in map(of.__getitem__, units) if key is not None)
        for key, unit in zip(evicted, units, strict=True):
            policy.evicted(key, unit)
            self._forget(key, unit)
            self._free.append(unit)
        if self.announces:
            self._events.append(ChunkRemoved(evicted))
        return evicted

    def _forget(self, key: Key, unit: int) -> None:
        """The unit has no chunk any more."""
        del self._unit[key]
        self._key[unit] = None
        self._stored[unit] = 0

    def _drop_pins(self) -> None:
        for owner in list(self._pins):
            self.release(owner)

    def _hold(self, unit: int) -> None:
        if not self._holds[unit]:
            self._policy.hold(unit)
        self._holds[unit] += 1

    def _unhold(self, unit: int) -> None:
        self._holds[unit] -= 1
        if not self._holds[unit]:
            if self._key[unit] is None:
                self._free.append(unit)
            else:
                self._policy.unhold(unit)

    def _chunks(self) -> Iterator[tuple[Key, int]]:
        """The stored chunks with their units."""
        return ((key, unit) for key, unit in self._unit.items() if self._stored[unit])


def lru(units: int) -> Tier:
    """A tier that evicts the least recently used chunk."""
    return Tier(units)


def arc(units: int) -> Tier:
    """A tier that evicts by ARC."""
    return Tier(units, ARC)
