"""Places of KV under a target with tiers, and what stands in each: blocks of the pool, units of a tier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvlockstep.models.requests.slot_memory import SlotMemory
from kvlockstep.reference.kv.memory import UNWRITTEN


class Place(NamedTuple):
    """A block of the pool, whose tier is None, or a unit of a tier."""

    tier: str | None
    unit: int

    def __str__(self) -> str:
        return f"block {self.unit}" if self.tier is None else f"unit {self.unit} of {self.tier}"


class Places:
    """The contents of places, one stamp for each of `block_size` slots.

    `stored` are those of the units that were ever written; of these `lost` are gone in their tier, and nobody was told.
    """

    def __init__(self, memory: SlotMemory, block_size: int) -> None:
        self._memory, self._size = memory, block_size
        self.stored: dict[Place, list[int]] = {}
        self.lost: set[Place] = set()

    def read(self, place: Place) -> list[int]:
        if place.tier is None:
            return self._memory.peek(self.slots(place))
        return list(self.stored.get(place, [UNWRITTEN] * self._size))

    def write(self, place: Place, stamps: Sequence[int]) -> None:
        if place.tier is None:
            self._memory.put(self.slots(place), stamps)
        else:
            self.stored[place] = list(stamps)
            self.lost.discard(place)

    def fill(self, place: Place, stamp: int) -> None:
        """Writes one stamp into every slot of a place."""
        self.write(place, [stamp] * self._size)

    def slots(self, place: Place) -> list[int]:
        """Returns the slots of a block of the pool."""
        return list(range(place.unit * self._size, (place.unit + 1) * self._size))

    def state(self) -> Any:
        """What the fingerprint of a state has of the tiers."""
        stored = [(place, *map(self._memory.history, stamps)) for place, stamps in sorted(self.stored.items())]
        return tuple(stored), tuple(sorted(self.lost))
