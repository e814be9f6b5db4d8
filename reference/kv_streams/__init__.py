"""KV that several streams write, read, copy and swap."""

from kvlockstep.reference.kv_streams.store import KVStreams

__all__ = ["KVStreams"]
