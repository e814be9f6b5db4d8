"""The model of kv_store."""

from kvlockstep.models.kv_store.model import KVStoreModel

__all__ = ["KVStoreModel"]
