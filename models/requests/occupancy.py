"""Occupancy of the pool by blocks: held, idle, seen, written and evicted ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.tables import Tables
from kvlockstep.properties.kv_manager.laws import serving


class Occupancy:
    """Blocks that live requests hold, by their tables as they were last read.

    `held` are the blocks of those tables. `seen` were ever in a table. `idle` are those of them that nobody holds
    now, in the order in which they became idle. `written` collects the blocks that steps have written since. The
    judge keeps the blocks that the last operation `freed` here, and the number of blocks `evicted` so far.

    `laws` is the module that declares the contract's laws. `total` counts slots; `most_blocks` is the longest table
    that a request of `max_length` tokens may have, None without a limit.
    """

    def __init__(
        self,
        tables: Tables,
        checks: Checks,
        laws: Any,
        *,
        block_size: int,
        total: int,
        max_length: int | None,
        most_blocks: int | None,
    ) -> None:
        self.held: set[int] = set()
        self.seen: set[int] = set()
        self._lowest = 0
        self.idle: dict[int, None] = {}
        self.written: set[int] = set()
        self.freed: set[int] = set()
        self.evicted = 0
        self._tables, self._checks, self._laws = tables, checks, laws
        self.block_size, self._total = block_size, total
        self._max_length, self._most_blocks = max_length, most_blocks

    @property
    def held_slots(self) -> int:
        """The slots of the held blocks, those without a token included."""
        return len(self.held) * self.block_size

    def blocks_for(self, tokens: int) -> int:
        """Returns the number of blocks for that many tokens."""
        return -(-tokens // self.block_size)

    def counts_blocks(self, lost: int) -> bool:
        """Tells whether a manager that holds nothing seems to count blocks where it should count slots."""
        smaller, larger = sorted((self._total, self._total - lost))
        return smaller * self.block_size == larger

    def blocks_of(self, entries: Iterable[int]) -> set[int]:
        """Returns the blocks that stand in a table, or in part of one."""
        size = self.block_size
        return {entry // size for entry in entries}

    def all_slots(self) -> list[int]:
        """Returns every entry that a table ever had or might have had: those of all blocks seen."""
        size, step = self.block_size, self._tables.entry_size
        return [block * size + i for block in self.seen for i in range(0, size, step)]

    def follow(self, tables: Mapping[str, list[int]]) -> None:
        """Takes in the tables of all requests that hold anything. Raises Divergence if one has a slot twice."""
        held: set[int] = set()
        sparing = self._tables.sparing
        for name, table in tables.items():
            known = self._tables.known(name, table) if sparing else None
            if len(set(table) if known is None else known.slots) < len(table):
                self._checks.subject = name
                twice = next(slot for slot in table if table.count(slot) > 1)
                serves = serving(twice, {name: table}, self._tables.entry_size)
                self._checks.check(self._laws.no_aliasing, serves, twice, self.block_size)
            held |= self.blocks_of(table) if known is None else known.blocks
        for block in held - self.held:
            self.idle.pop(block, None)
        for block in self.held - held:
            self.idle[block] = None
        self._lowest = min(held - self.seen, default=0)
        self.seen |= held
        self.held = held

    def given_back(self, before: set[int]) -> set[int]:
        """Returns the blocks that nobody holds now, of those in `before` and those written since."""
        return (before | self.written) - self.held

    def evictions(self, before: set[int], free_before: int, free_now: int) -> int:
        """Returns how many blocks must have been evicted since `before` were held, `free_*` slots being free: a bound.

        Of the blocks that were taken or became free, those that no request gave back.
        """
        gained = len(self.written - before) + (free_now - free_before) // self.block_size
        return max(0, gained - len(self.given_back(before))) if gained > 0 else 0

    def check_conservation(self) -> None:
        """Raises Divergence if more blocks have been seen than the pool has, or one below 0."""
        self._checks.check(self._laws.conservation, self.seen, self._total, self.block_size, self._lowest)

    def check_numbers(self, free: Sequence[int]) -> None:
        """Raises Divergence if one of the free slots, which are sorted, is below 0."""
        if free and free[0] < 0:
            lowest = free[0] // self.block_size
            self._checks.check(self._laws.conservation, self.seen, self._total, self.block_size, lowest)

    def check_lengths(self, tables: Mapping[str, Sequence[int]]) -> None:
        """Raises Divergence if a table is longer than the worker's row."""
        if self._most_blocks is None or not tables:
            return
        name = max(tables, key=lambda name: len(tables[name]))
        blocks = self.blocks_for(len(tables[name]) * self._tables.entry_size)
        self._checks.check(self._laws.table_limit, name, blocks, self._most_blocks, self._max_length)
