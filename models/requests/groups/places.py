"""Places of KV where a request has a table for each group: a block, or a unit, holds what one group has written."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

from kvlockstep.models.core.whole import whole
from kvlockstep.models.requests.groups.content import FREED, NOBODY, NOTHING, REST, WHOLE, Content
from kvlockstep.models.requests.groups.memory import GroupMemory
from kvlockstep.models.requests.transfers.places import Block, OfPool, Place, Places
from kvlockstep.reference.kv.memory import LOST, UNWRITTEN, VOID


class GroupPlaces(Places):
    """The contents of blocks of `pools`, in which a block has `size` tokens at most, and of units of tiers.

    With one pool a block is its number, else an OfPool. `in_tiers` are the groups of which a tier ever had a block.
    """

    def __init__(self, memory: GroupMemory, pools: Collection[str], size: int) -> None:
        self._kv, self._pools, self._most = memory, list(pools), size
        self.stored: dict[Place, Content] = {}
        self.lost: set[Place] = set()
        self.in_tiers: set[int] = set()

    def block(self, pool: str, number: int) -> Block:
        """A block of a pool."""
        return OfPool(pool, number) if len(self._pools) > 1 else number

    def blocks(self, pool: str, numbers: Iterable[int]) -> Iterable[Block]:
        """Blocks of a pool."""
        return [OfPool(pool, number) for number in numbers] if len(self._pools) > 1 else numbers

    def in_pool(self, block: Block) -> OfPool:
        """The pool and the number of a block."""
        return block if isinstance(block, OfPool) else OfPool(self._pools[0], block)

    def read(self, place: Place) -> Content:
        if place.tier is None:
            return self._kv.content(self.in_pool(place.unit))
        return self.stored.get(place, NOTHING)

    def write(self, place: Place, content: Content) -> None:
        if place.tier is None:
            self._kv.put(self.in_pool(place.unit), content)
        else:
            self.stored[place] = content
            self.lost.discard(place)
            self.in_tiers.update({content.group} - {NOBODY})

    def filled(self, mark: int) -> Content:
        return Content(NOBODY, {WHOLE: mark})

    def is_nothing(self, content: Content) -> bool:
        return content in (NOTHING, FREED)

    def identity(self, content: Content) -> Hashable:
        return content.group, tuple(sorted(content.cells.items()))

    def in_words(self, content: Content) -> str:
        return self._kv.histories.in_words(content)

    @property
    def pairs(self) -> str:
        behind = f", each behind the name of its pool ({', '.join(self._pools)})" if len(self._pools) > 1 else ""
        return super().pairs + behind

    def end_of(self, pair: Sequence[Any], load: bool) -> tuple[Block, int]:
        if len(self._pools) == 1:
            return super().end_of(pair, load)
        pool, *ends = pair
        if pool not in self._pools:
            raise ValueError(pool)
        source, target = map(whole, ends)
        return (OfPool(pool, target), source) if load else (OfPool(pool, source), target)

    def prefix(self, content: Content) -> tuple[int | None, Sequence[int]] | None:
        stamp = self.ending(content)[1]
        return self._kv.histories.history(stamp) if stamp > UNWRITTEN else None

    def endings(self) -> set[tuple[int, int]]:
        return set(map(self.ending, self._kv.written))

    def ending(self, content: Content) -> tuple[int, int]:
        return content.group, content.cells[max(content.cells)] if content.cells else UNWRITTEN

    def cells(self, place: Place) -> Any:
        return [(self.in_pool(place.unit), offset) for offset in (*range(self._most), WHOLE, REST)]

    def blocks_of(self, free: Iterable[Any]) -> set[Block]:
        return set(free)

    def without(self, free: list[Any], blocks: set[Block]) -> list[Any]:
        return [block for block in free if block not in blocks]

    def give_up(self, cells: Iterable[Any]) -> None:
        self._kv.remark(VOID, LOST)

    def state(self) -> Any:
        stored = [(place, *self._kv.histories.told(content)) for place, content in sorted(self.stored.items())]
        return tuple(stored), tuple(sorted(self.lost))
