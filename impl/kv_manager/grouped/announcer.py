"""Announcements of what can be hit in each group: one event for each block that is published or evicted."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kvlockstep.impl.kv_manager.grouped.prefixes import Prefix
from kvlockstep.reference.kv_manager.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvlockstep.reference.kv_manager.groups.contract import Group


class Announcer:
    """Keeps the events of `groups`, whose blocks are `per_block` steps, until they are asked for: without a bound.

    The key of a block is the serial number of its prefix, the same in every group. A prefix that a block ends at has
    had the same number since the block in front of it was announced, for a longer prefix keeps the shorter ones.
    """

    def __init__(self, groups: Sequence[Group], per_block: Sequence[int]) -> None:
        self._groups = groups
        self._per_block = per_block
        self._events: list[Event] = [AllBlocksCleared()]

    def stored(self, prefix: Prefix, g: int) -> None:
        """The group's block that ends at the prefix can be hit."""
        parts, before = [], prefix
        for _ in range(self._per_block[g]):
            assert before.parent is not None
            parts.append(before.tokens)
            before = before.parent
        tokens = tuple(array("q", b"".join(reversed(parts))))
        parent = before.serial if before.parent is not None else None
        size = self._groups[g].block_size
        self._events.append(BlockStored((prefix.serial,), parent, tokens, size, prefix.extra_key, group=g))

    def removed(self, prefix: Prefix, g: int) -> None:
        """The group's block that ends at the prefix cannot be hit any more."""
        self._events.append(BlockRemoved((prefix.serial,), group=g))

    def told(self) -> list[Event]:
        """Returns the events since the last call."""
        events, self._events = self._events, []
        return events
