"""KV that several streams write, read, copy and swap."""

from kvlockstep.impl.kv_streams.store import KVStreams

__all__ = ["KVStreams"]
