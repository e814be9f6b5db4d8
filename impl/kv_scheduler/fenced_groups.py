"""kv_scheduler with groups and a tier that frees blocks while they are still being stored, also those that slide.

Nothing keeps the source of a store, of no group. The worker waits for the store before a block of it is written again.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvlockstep.impl.kv_scheduler.fenced import FencedScheduler
from kvlockstep.reference.kv_manager.groups.contract import Step
from kvlockstep.reference.kv_manager.groups.in_tier import Block
from kvlockstep.reference.kv_scheduler.contract import Item
from kvlockstep.reference.kv_scheduler.grouped import FullAndWindow, StatePool
from kvlockstep.reference.kv_scheduler.tiered_groups import TieredGroups


class FencedGroups(TieredGroups, FencedScheduler):
    """Meets kv_scheduler.contract.KVSchedulerTarget with groups and transfers."""

    def _writes(self, item: Item) -> Iterable[Block]:
        for g, (group, told) in enumerate(zip(self.groups, item.groups, strict=True)):
            if isinstance(told, Step):
                yield from (self._block(g, block) for _, block in told.saves)
            else:
                slots = told[item.start : item.start + item.n]
                yield from (self._block(g, slot // group.block_size) for slot in slots if slot is not None)


class FencedWindow(FullAndWindow, FencedGroups):
    """Full attention and a window, in one pool."""


class FencedStates(StatePool, FencedGroups):
    """Full attention, a window, and states in a pool of their own."""
