"""KV in tensors."""

from kvlockstep.impl.kv_store.store import KVStore

__all__ = ["KVStore"]
