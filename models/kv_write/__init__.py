"""Model of kv_write."""

from kvlockstep.models.kv_write.model import KVWriteModel

__all__ = ["KVWriteModel"]
