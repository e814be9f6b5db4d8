"""What faults of paged_cache share: a cache with a faulty pool."""

from __future__ import annotations

from kvlockstep.reference.paged_cache import PagedCache
from kvlockstep.reference.paged_cache.pool import PagedPool


class WithFaultyPool(PagedCache):
    """The reference with a faulty pool."""

    pool_type = PagedPool

    def reset(self) -> None:
        super().reset()
        self._pool = self.pool_type(self._blocks, self._policy)
