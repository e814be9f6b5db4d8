"""kv_tier: the least recently used chunk is evicted, a plan holds its units, a pin holds a chunk."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

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

P = TypeVar("P", StorePlan, LoadPlan)


@dataclass
class Chunk:
    """A chunk of the tier: its unit, and whether its bytes are there."""

    unit: int
    stored: bool = False


class KVTier:
    """`units` units. `_chunks` has the least recently used first; `_plans` has what is in flight, `_using` how many
    plans use a unit.

    Raises InvalidArgument if `units` is less than 1.
    """

    extra_key = can_pin = can_reset = reset_in_flight = announces = True

    def __init__(self, units: int) -> None:
        if units < 1:
            raise InvalidArgument(f"units={units}: a tier has at least one unit")
        self.total = units
        self._free = list(range(units))
        self._chunks: dict[Key, Chunk] = {}
        self._plans: dict[Hashable, StorePlan | LoadPlan] = {}
        self._using: Counter[int] = Counter()
        self._pins: set[tuple[str, Key]] = set()
        self._events: list[Event] = []
        self._ids = itertools.count()

    def lookup(self, key: Key, owner: str) -> Literal["miss", "pending", "hit"]:
        chunk = self._chunks.get(key)
        if chunk is None:
            return MISS
        if not chunk.stored:
            return PENDING
        self.touch([key])
        return HIT

    def pin(self, key: Key, owner: str) -> Literal["miss", "pending", "hit"]:
        answer = self.lookup(key, owner)
        if answer == HIT:
            self._pins.add((owner, key))
        return answer

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        new = [key for key in keys if key not in self._chunks]
        lacking = max(0, len(new) - len(self._free))
        # The offered keys that are there are not evicted for the others: the caller counts on the whole sequence.
        victims = [key for key in self._chunks if key not in keys and self._evictable(key)][:lacking]
        if len(victims) < lacking:
            return None
        for key in victims:
            self._evict(key)
        units = {key: self._free.pop(0) for key in new}
        self._chunks |= {key: Chunk(unit) for key, unit in units.items()}
        return self._begin(StorePlan(next(self._ids), units, victims))

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        self.touch(keys)
        self._pins -= {(owner, key) for key in keys}
        return self._begin(LoadPlan(next(self._ids), {key: self._chunks[key].unit for key in keys}))

    def complete(self, plan: Hashable, ok: bool) -> None:
        done = self._plans.pop(plan, None)
        if done is None:
            return
        self._using.subtract(done.units.values())
        for key, unit in done.units.items():
            chunk = self._chunks.get(key)
            # After a reset the key may be stored again, in another unit: this plan is not about that chunk.
            if isinstance(done, StorePlan) and chunk is not None and chunk.unit == unit:
                self._settle(key, chunk, ok)
            self._free_if_unused(unit)

    def touch(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if key in self._chunks:
                self._chunks[key] = self._chunks.pop(key)

    def release(self, owner: str) -> None:
        self._pins = {(of, key) for of, key in self._pins if of != owner}

    def reset(self) -> None:
        units = [chunk.unit for chunk in self._chunks.values()]
        self._chunks.clear()
        self._pins.clear()
        for unit in units:
            self._free_if_unused(unit)
        self._events.append(AllChunksCleared())

    def avail(self) -> int:
        return len(self._free) + sum(map(self._evictable, self._chunks))

    def free_units(self) -> list[int]:
        return list(self._free)

    def events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _begin(self, plan: P) -> P:
        self._plans[plan.id] = plan
        self._using.update(plan.units.values())
        return plan

    def _settle(self, key: Key, chunk: Chunk, ok: bool) -> None:
        """The store of a chunk has ended."""
        chunk.stored = ok
        if ok:
            self._events.append(ChunkStored((key,)))
        else:
            del self._chunks[key]

    def _evictable(self, key: Key) -> bool:
        return not self._using[self._chunks[key].unit] and all(key != pinned for _, pinned in self._pins)

    def _evict(self, key: Key) -> None:
        self._free.append(self._chunks.pop(key).unit)
        self._events.append(ChunkRemoved((key,)))

    def _free_if_unused(self, unit: int) -> None:
        if not self._using[unit] and all(chunk.unit != unit for chunk in self._chunks.values()):
            self._free.append(unit)
