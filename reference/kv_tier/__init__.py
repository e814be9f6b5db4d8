"""A store of chunks by key, below any scheduler."""

from kvlockstep.reference.kv_tier.tier import KVTier

__all__ = ["KVTier"]
