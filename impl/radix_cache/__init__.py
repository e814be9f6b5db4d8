"""A radix cache of pages."""

from kvlockstep.impl.radix_cache.cache import RadixCache

__all__ = ["RadixCache"]
