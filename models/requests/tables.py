"""Block tables and free list of a target, as the judge reads them."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.taking import method_name
from kvlockstep.models.requests.adapter import numbers
from kvlockstep.models.requests.known_table import KnownTable
from kvlockstep.properties.law import ERROR_CONTRACT

# Listing free slots takes about as long as checking them, and each about twice as long as reading a table.
SPARING = 4


class Tables:
    """Reads tables and free list as slots: every slot, or `per_block` the first slot of each block.

    An entry stands for `entry_size` slots from it on: 1, or per block the block size. Per block the tables come from
    `blocks(rid)` and the free list from `free_blocks()`, if the adapter has one; a list that has not changed is not
    converted again.

    The pool has `total` slots. With `sparing`, for one that takes long to list, the free list is due when SPARING times
    as many entries of tables have been read since the last time, and only the new part of a table is checked.
    """

    def __init__(
        self, adapter: Any, block_size: int, *, per_block: bool, sparing: bool = False, total: int = 0
    ) -> None:
        self.per_block = per_block
        self.entry_size = block_size if per_block else 1
        self.shows_free = not per_block or callable(getattr(adapter, "free_blocks", None))
        self.sparing = sparing
        self._adapter = adapter
        self._block_size = block_size
        self._converted: dict[str, tuple[list[int], list[int]]] = {}
        self._free: tuple[list[int], list[int]] = ([], [])
        self._known: dict[str, KnownTable] = {}
        self._until_due = SPARING * total
        self._total = total

    def entries(self, name: str) -> list[int]:
        """Asks where the tokens of a request lie now; entries in the order of positions. Raises Divergence."""
        method = self._adapter.blocks if self.per_block else self._adapter.slots
        found = numbers(method, name, pool=self._total)
        if found is None:
            raise Divergence(ERROR_CONTRACT.id, f"{method_name(method)} returned None, not numbers")
        if not self.per_block:
            self._until_due -= len(found)
            return found
        known = self._converted.get(name)
        if known is None or known[0] != found:
            # A copy: a manager may return the list that it works on.
            known = self._converted[name] = list(found), [block * self.entry_size for block in found]
        return known[1]

    def free(self) -> list[int]:
        """Asks for the free entries; sorted, empty if the manager does not say. Raises Divergence."""
        if not self.shows_free:
            return []
        if self.per_block:
            blocks = numbers(self._adapter.free_blocks, pool=self._total) or []
            if self._free[0] != blocks:
                self._free = list(blocks), sorted(block * self.entry_size for block in blocks)
            return self._free[1]
        slots = numbers(self._adapter.free_slots, pool=self._total)
        if slots is None:
            self.shows_free = False
            return []
        self._until_due = SPARING * len(slots)
        return sorted(slots)

    def free_is_due(self) -> bool:
        """Returns whether the free list is worth asking for now."""
        return not self.sparing or self._until_due <= 0

    def known(self, name: str, table: list[int]) -> KnownTable:
        """Returns the table of a request with the sets of its slots and blocks."""
        known = self._known.setdefault(name, KnownTable(self._block_size))
        known.follow(table)
        return known

    def forget_but(self, names: Container[str]) -> None:
        """Forgets the tables of all other requests."""
        self._converted = {name: known for name, known in self._converted.items() if name in names}
        self._known = {name: known for name, known in self._known.items() if name in names}
