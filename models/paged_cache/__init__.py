"""The model of paged_cache."""

from kvlockstep.models.paged_cache.model import PagedCacheModel

__all__ = ["PagedCacheModel"]
