"""A scheduler: which requests run in a batch, with how many tokens."""

from kvlockstep.reference.kv_scheduler.scheduler import KVScheduler

__all__ = ["KVScheduler"]
