"""The index of a prefix-aware router: what each worker has cached, by the events that it sends."""

from kvlockstep.reference.kv_index.index import KVIndex

__all__ = ["KVIndex"]
