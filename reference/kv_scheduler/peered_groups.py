"""kv_scheduler with groups and a peer: others fill the tier with blocks of every group, and may lose them.

Of an offer it takes what a hit of the longest length would need: of a window the blocks in its reach, of a state the
one at that length. As a producer it stores every full block of every group as soon as it is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.reference.kv_manager.groups.request import to_hit
from kvlockstep.reference.kv_manager.tier import HOST
from kvlockstep.reference.kv_scheduler.grouped import FullAndState, FullAndWindow, StatePool, TwoWindows
from kvlockstep.reference.kv_scheduler.peered import SharedTier
from kvlockstep.reference.kv_scheduler.tiered_groups import TieredGroups


class PeeredGroups(TieredGroups):
    """Meets kv_scheduler.contract.KVSchedulerTarget with groups and a peer."""

    peer = HOST
    loses = durable = True
    tier_type = SharedTier
    _tier: SharedTier

    def _tier_size(self, blocks: int) -> int:
        # A unit for each block of the pools, whose store may be in flight or which a load may fill.
        return 5 * blocks

    def offer(self, tokens: list[int], extra_key: int | None) -> Sequence[Sequence[int | None]]:
        cached = self._longest_hit(len(tokens))
        return [
            [
                self._tier.receive(self._kv._key(g, tokens, extra_key, place))
                if place in to_hit(group, cached)
                else None
                for place in range(len(tokens) // group.block_size)
            ]
            for g, group in enumerate(self.groups)
        ]

    def _longest_hit(self, length: int) -> int:
        """The longest length of a hit, up to `length`: the end of a block in every group."""
        return max(n for n in range(length + 1) if all(n % group.block_size == 0 for group in self.groups))


class PeeredWindow(FullAndWindow, PeeredGroups):
    """Full attention and a window, in one pool."""


class PeeredWindows(TwoWindows, PeeredGroups):
    """Full attention with two windows, in one pool."""


class PeeredState(FullAndState, PeeredGroups):
    """Full attention and a state, in one pool."""


class PeeredStates(StatePool, PeeredGroups):
    """Full attention, a window, and states in a pool of their own."""
