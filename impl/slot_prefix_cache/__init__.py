"""A prefix cache of slots."""

from kvlockstep.impl.slot_prefix_cache.cache import SlotPrefixCache

__all__ = ["SlotPrefixCache"]
