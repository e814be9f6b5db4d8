"""A KV-cache manager: the blocks of each request, and the prefix hits of prompts."""

from kvlockstep.reference.kv_manager.manager import KVManager

__all__ = ["KVManager"]
