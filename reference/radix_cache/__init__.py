"""A radix cache of pages."""

from kvlockstep.reference.radix_cache.cache import RadixCache

__all__ = ["RadixCache"]
