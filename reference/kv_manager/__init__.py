"""A KV-cache manager: which request holds which blocks, and what of a prompt is a hit."""

from kvlockstep.reference.kv_manager.manager import KVManager

__all__ = ["KVManager"]
