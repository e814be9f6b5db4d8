"""What can happen to a kv_tier."""

from kvlockstep.models.kv_tier.model import KVTierModel

__all__ = ["KVTierModel"]
