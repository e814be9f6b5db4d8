"""KV memory slot by slot for long requests, which reads again only positions that may have changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from kvlockstep.models.requests.known_table import KnownTable
from kvlockstep.models.requests.request import Request
from kvlockstep.models.requests.slot_memory import SlotMemory
from kvlockstep.properties.kv_manager.cell import Cell
from kvlockstep.reference.kv.memory import UNWRITTEN, KVMemory
from kvlockstep.reference.kv_manager.traits import Traits

# In a larger pool the list of free slots is not asked for at every step.
SMALL_POOL = 1 << 16


class WatchedMemory(KVMemory):
    """KV memory that tells which slots hold something else after a write. `filled` slots hold a token's KV."""

    def __init__(self, tell: Callable[[set[int]], None]) -> None:
        super().__init__()
        self.filled: set[int] = set()
        self._tell = tell

    def write(self, slots: Sequence[int], stamps: Sequence[int]) -> None:
        changed = {slot: stamp for slot, stamp in zip(slots, stamps, strict=True) if self._cells.get(slot) != stamp}
        self._cells.update(changed)
        self.filled.difference_update(changed)
        self.filled.update(slot for slot, stamp in changed.items() if stamp > UNWRITTEN)
        self._tell(set(changed))


class LongSlotMemory(SlotMemory):
    """One stamp per slot, for a manager that keeps no KV of its own.

    A position that was right stays right while its slot and the content of the slot stay the same. So the memory keeps
    the positions of each request that it has read. It forgets them when the table of the request or the content of one
    of its slots changes.
    """

    def __init__(self, adapter: Any, traits: Traits, goals_met: Counter[str]) -> None:
        super().__init__(adapter, traits, goals_met)
        self.sparing = traits.total > SMALL_POOL
        self._store = self._memory = WatchedMemory(self._forget)
        self._right: dict[str, KnownTable] = {}
        self._read: set[str] = set()
        self._block_size = traits.block_size

    def first_wrong(self, request: Request, table: Sequence[int], stop: int) -> Cell | None:
        head = list(table[:stop])
        self._read.add(request.name)
        right = self._right.setdefault(request.name, KnownTable(self._block_size))
        # Behind the computed tokens may be drafts, which are others the next time.
        right.cut(min(stop, request.computed))
        if not right.begins(head):
            right.cut(0)
        start = len(right.table)
        cell = self._wrong_from(request, head, start, stop)
        if cell is None:
            right.extend(head[start:])
        return cell

    def poison(self, slots: Sequence[int]) -> None:
        """Poisons the freed slots that hold KV; the others are not remembered."""
        super().poison(sorted(self._memory.filled.intersection(slots)))

    def end_forward(self) -> None:
        super().end_forward()
        self._right = {name: right for name, right in self._right.items() if name in self._read}
        self._read.clear()

    def _forget(self, changed: set[int]) -> None:
        for right in self._right.values():
            if not right.slots.isdisjoint(changed):
                right.cut(0)
