"""Places of KV under a target with tiers, and what stands in each: blocks of a pool, units of a tier."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from kvlockstep.models.core.whole import whole
from kvlockstep.models.requests.slot_memory import SlotMemory
from kvlockstep.reference.kv.memory import LOST, POISON, UNWRITTEN, VOID


class OfPool(NamedTuple):
    """A block of one of several pools."""

    pool: str
    block: int

    def __str__(self) -> str:
        return f"{self.block} of pool {self.pool}"


# A block of the only pool, or of one of several.
Block = int | OfPool


class Place(NamedTuple):
    """A block, whose tier is None, or a unit of a tier."""

    tier: str | None
    unit: Block

    def __str__(self) -> str:
        return f"block {self.unit}" if self.tier is None else f"unit {self.unit} of {self.tier}"


class Places:
    """The contents of places where a request has one table: one stamp for each of `block_size` slots.

    `stored` are those of the units that were ever written; of these `lost` are gone in their tier, and nobody was told.
    With groups a content is another type; the copy engine looks into none.
    """

    def __init__(self, memory: SlotMemory, block_size: int) -> None:
        self._memory, self._size = memory, block_size
        self.stored: dict[Place, Any] = {}
        self.lost: set[Place] = set()

    def read(self, place: Place) -> Any:
        """A copy of what stands in a place."""
        if place.tier is None:
            return self._memory.peek(self.cells(place))
        return list(self.stored.get(place, [UNWRITTEN] * self._size))

    def write(self, place: Place, content: Any) -> None:
        if place.tier is None:
            self._memory.put(self.cells(place), content)
        else:
            self.stored[place] = list(content)
            self.lost.discard(place)

    def fill(self, place: Place, mark: int) -> None:
        """Writes one mark into all of a place."""
        self.write(place, self.filled(mark))

    def filled(self, mark: int) -> Any:
        """A content of which all is one mark."""
        return [mark] * self._size

    def is_nothing(self, content: Any) -> bool:
        """True if a content is none of this cache: never written, or wiped."""
        return content[0] in (UNWRITTEN, POISON)

    def identity(self, content: Any) -> Hashable:
        """What tells a content from all others."""
        return tuple(content)

    def in_words(self, content: Any) -> str:
        """A content in words: what is most wrong in it."""
        return self._memory.worst(content)

    @property
    def pairs(self) -> str:
        """What a store or a load has to name, in words."""
        return "pairs of a block and a unit"

    def end_of(self, pair: Sequence[Any], load: bool) -> tuple[Block, int]:
        """The block and the unit of a pair of a transfer. Raises ValueError or TypeError for what is no pair."""
        source, target = map(whole, pair)
        return (target, source) if load else (source, target)

    def prefix(self, content: Any) -> tuple[int | None, Sequence[int]] | None:
        """The extra key and all tokens up to the end of a content; None if it is no KV."""
        stamp = self.ending(content)[1]
        return self._memory.history(stamp) if stamp > UNWRITTEN else None

    def kept(self) -> list[Any]:
        """The KV that stands in tiers and, as far as its end tells, in no block."""
        there = self.endings()
        kept = [content for place, content in self.stored.items() if place not in self.lost]
        return [content for content in kept if (end := self.ending(content)) not in there and end[1] > UNWRITTEN]

    def endings(self) -> set[tuple[int, int]]:
        """The endings of what stands in blocks."""
        # One read for all: a pool may have thousands of blocks.
        last = [slot for slot in self._memory.written if slot % self._size == self._size - 1]
        return {(0, stamp) for stamp in self._memory.peek(last)}

    def ending(self, content: Any) -> tuple[int, int]:
        """The group of a content, and its last stamp, which stands for all before it."""
        return 0, content[-1]

    def cells(self, place: Place) -> Any:
        """The cells of a block: here the slots."""
        assert isinstance(place.unit, int)
        return list(range(place.unit * self._size, (place.unit + 1) * self._size))

    def blocks_of(self, free: Iterable[Any]) -> set[Block]:
        """The blocks that a free list names."""
        return {slot // self._size for slot in free}

    def without(self, free: list[Any], blocks: set[Block]) -> list[Any]:
        """A free list without what lies in these blocks."""
        return [slot for slot in free if slot // self._size not in blocks]

    def give_up(self, cells: Iterable[Any]) -> None:
        """Of these cells those that are void are lost from now on."""
        slots = sorted(cells)
        lost = [slot for slot, stamp in zip(slots, self._memory.peek(slots), strict=True) if stamp == VOID]
        self._memory.put(lost, [LOST] * len(lost))

    def state(self) -> Any:
        """What the fingerprint of a state has of the tiers."""
        stored = [(place, *map(self._memory.history, stamps)) for place, stamps in sorted(self.stored.items())]
        return tuple(stored), tuple(sorted(self.lost))
