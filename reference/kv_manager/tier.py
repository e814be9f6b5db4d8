"""A tier: units outside of the pool, each with one block of KV, found by the block's key."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from kvlockstep.reference.kv.transfers import TierUnits

HOST = "host"

# Everything that the content of a block depends on: a key of the manager's, which has the group in it if there are any.
Key = Any
# The number of a block; with groups (pool, number).
Block = Any


class Store(NamedTuple):
    """A store in flight: the block that it reads."""

    key: Key
    block: Block


class Load(NamedTuple):
    """A load in flight for a request of a kv_manager: what it reads, and the blocks that it fills."""

    request: Any
    keys: list[Key]
    units: list[int]
    blocks: list[Block]

    @property
    def kept(self) -> list[Block]:
        """The blocks that nobody else may take."""
        return self.blocks


class Tier:
    """`units` units. A unit is free, or written by a store, or cached under its key; readers keep a cached one.

    The least recently used unit that nobody reads is evicted first.
    """

    def __init__(self, units: int) -> None:
        self._free = list(range(units))
        self._storing: dict[Key, int] = {}
        self._cached: dict[Key, int] = {}
        self._readers: Counter[int] = Counter()

    def knows(self, key: Key) -> bool:
        """Returns whether the block is cached or on its way."""
        return key in self._cached or key in self._storing

    def find(self, key: Key) -> int | None:
        """Returns the unit that a load may read, and counts as a use of it; None if there is none."""
        if key in self._cached:
            self._cached[key] = self._cached.pop(key)
        return self._cached.get(key)

    def begin_store(self, key: Key) -> int | None:
        """Takes a unit for a block, with an eviction if there is none free; None if all are in use."""
        if not self._free:
            victim = next((key for key, unit in self._cached.items() if not self._readers[unit]), None)
            if victim is None:
                return None
            self._free.append(self._cached.pop(victim))
        self._storing[key] = self._free.pop(0)
        return self._storing[key]

    def end_store(self, key: Key, ok: bool) -> None:
        """A store has ended: only what was written can be found."""
        unit = self._storing.pop(key)
        if ok:
            self._cached[key] = unit
        else:
            self._free.append(unit)

    def begin_load(self, key: Key) -> None:
        """A load reads the block's unit from now on."""
        self._readers[self._cached[key]] += 1

    def end_load(self, key: Key, unit: int, ok: bool) -> None:
        """A load has ended. What could not be read is forgotten."""
        self._readers[unit] -= 1
        if not ok and self._cached.get(key) == unit:
            del self._cached[key]
        if not self._readers[unit] and unit not in self._cached.values():
            self._free.append(unit)

    def units(self) -> TierUnits:
        """Returns where each unit is now. One that a load still reads counts as cached."""
        pinned = [unit for unit, readers in self._readers.items() if readers]
        cached = {**dict.fromkeys(self._cached.values()), **dict.fromkeys(pinned)}
        return TierUnits(list(self._free), list(cached), list(self._storing.values()), pinned)
