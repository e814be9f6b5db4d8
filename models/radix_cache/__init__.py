"""The model of radix_cache."""

from kvlockstep.models.radix_cache.model import RadixCacheModel

__all__ = ["RadixCacheModel"]
