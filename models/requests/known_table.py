"""Known table: a block table that is read again and again and mostly only grows, with its slots and blocks."""

from __future__ import annotations


class KnownTable:
    """The head of a request's table, with the set of its slots and of its blocks; of a table only the rest is new."""

    def __init__(self, block_size: int) -> None:
        self.table: list[int] = []
        self.slots: set[int] = set()
        self.blocks: set[int] = set()
        self._block_size = block_size

    def begins(self, table: list[int]) -> bool:
        """True if a table begins with the known one."""
        known = len(self.table)
        return self.table == (table if len(table) == known else table[:known])

    def follow(self, table: list[int]) -> None:
        """Adds the part of a table behind the known head, or all of it if the head differs."""
        if not self.begins(table):
            self.cut(0)
        self.extend(table[len(self.table) :])

    def extend(self, fresh: list[int]) -> None:
        """Adds the entries behind the known head."""
        self.table += fresh
        self.slots.update(fresh)
        self.blocks.update(slot // self._block_size for slot in fresh)

    def cut(self, length: int) -> None:
        """Forgets all but the first entries."""
        if length < len(self.table):
            head = self.table[:length]
            self.table, self.slots = head, set(head)
            self.blocks = {slot // self._block_size for slot in head}
