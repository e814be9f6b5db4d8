"""What faults of paged_cache share: a cache over a spoiled pool."""

from __future__ import annotations

from kvlockstep.reference.paged_cache import PagedCache
from kvlockstep.reference.paged_cache.pool import PagedPool


class Spoiled(PagedCache):
    """A paged_cache over a spoiled pool."""

    pool_type = PagedPool

    def reset(self) -> None:
        super().reset()
        self._pool = self.pool_type(self._blocks, self._policy)
