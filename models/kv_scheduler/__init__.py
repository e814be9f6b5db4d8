"""The model of kv_scheduler."""

from kvlockstep.models.kv_scheduler.model import KVSchedulerModel

__all__ = ["KVSchedulerModel"]
