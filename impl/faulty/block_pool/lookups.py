"""Faults of block_pool: looking up cached blocks."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.block_pool import BlockPool
from kvlockstep.reference.block_pool.keys import RequestKeys


@fault("bp-skips-hole", law="prefix_soundness", seen=("mutant",))
class SkipsHole(BlockPool):
    """A lookup continues behind a block that is not cached."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        super().find_longest_prefix(keys, limit)
        return [block for i in range(len(keys))[:limit] if (block := self._find(keys.key(i))) is not None]


@fault("bp-limit-ignored", law="prefix_soundness", seen=("vllm#11186",))
class LimitIgnored(BlockPool):
    """A lookup ignores its limit and may return the whole request."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        super().find_longest_prefix(keys, limit)
        return super().find_longest_prefix(keys)


@fault("bp-one-less", law="prefix_completeness", seen=("vllm#11186",))
class LastBlockNeverHit(BlockPool):
    """A lookup never hits the last block of a request, even if its limit allows it."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        return super().find_longest_prefix(keys, limit)[: max(0, len(keys) - 1)]


@fault("bp-lookup-refreshes", law="atomicity", seen=("sglang#31643",))
class LookupRefreshes(BlockPool):
    """A lookup moves the blocks that it hits to the tail of the free queue."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        hits = super().find_longest_prefix(keys, limit)
        idle = [block for block in hits if block in self._queue]
        self._queue = [block for block in self._queue if block not in idle] + idle
        return hits


@fault("bp-all-or-nothing", law="prefix_completeness", seen=("vllm#57610",))
class AllOrNothing(BlockPool):
    """A request that leaves the cached path in its last block hits nothing."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        hits = super().find_longest_prefix(keys, limit)
        return hits if len(hits) >= min(len(keys), len(keys) if limit is None else limit) else []
