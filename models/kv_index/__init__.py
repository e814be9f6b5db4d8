"""The model of kv_index."""

from kvlockstep.models.kv_index.model import KVIndexModel

__all__ = ["KVIndexModel"]
