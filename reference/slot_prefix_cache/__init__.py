"""Prefixes and their slots."""

from kvlockstep.reference.slot_prefix_cache.cache import SlotPrefixCache

__all__ = ["SlotPrefixCache"]
