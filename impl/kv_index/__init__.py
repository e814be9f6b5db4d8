"""The index of a prefix-aware router, in flat tables."""

from kvlockstep.impl.kv_index.index import CountingKVIndex, KVIndex

__all__ = ["CountingKVIndex", "KVIndex"]
