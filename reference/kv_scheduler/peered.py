"""kv_scheduler with a peer: a tier that another instance fills as well, and that may lose what it holds.

As a consumer it loads what was offered, like anything else in the tier; what could not be loaded is forgotten and
computed. As a producer it stores every full block: the tier is larger than the pool, so a store always finds a unit.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.reference.kv_manager.manager import Key
from kvlockstep.reference.kv_manager.tier import HOST, Tier
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


class SharedTier(Tier):
    """A tier that others fill, too."""

    def receive(self, key: Key) -> int | None:
        """Somebody else has written a block. Returns its unit; None if there is no room, or a store is writing it."""
        if key in self._storing:
            return None
        if key not in self._cached and self.begin_store(key) is not None:
            self.end_store(key, True)
        return self.find(key)


class PeeredScheduler(TieredScheduler):
    """Meets kv_scheduler.contract.KVSchedulerTarget with a peer."""

    peer = HOST
    loses = durable = True
    tier_type = SharedTier
    _tier: SharedTier

    def offer(self, tokens: list[int], extra_key: int | None) -> Sequence[int | None]:
        ends = range(self.block_size, len(tokens) + 1, self.block_size)
        return [self._tier.receive(self._kv._key(extra_key, tokens[:end])) for end in ends]
