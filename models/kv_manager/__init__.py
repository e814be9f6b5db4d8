"""The model of kv_manager."""

from kvlockstep.models.kv_manager.model import KVManagerModel

__all__ = ["KVManagerModel"]
