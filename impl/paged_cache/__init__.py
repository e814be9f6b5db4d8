"""A paged cache with block tables, sharing and eviction."""

from kvlockstep.impl.paged_cache.cache import PagedCache

__all__ = ["PagedCache"]
