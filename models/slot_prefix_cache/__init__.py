"""The model of slot_prefix_cache."""

from kvlockstep.models.slot_prefix_cache.model import SlotPrefixCacheModel

__all__ = ["SlotPrefixCacheModel"]
