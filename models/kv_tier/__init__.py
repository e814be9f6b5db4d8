"""Commands, goals and judge of kv_tier."""

from kvlockstep.models.kv_tier.model import KVTierModel

__all__ = ["KVTierModel"]
