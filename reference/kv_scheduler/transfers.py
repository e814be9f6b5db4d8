"""Transfers of kv_scheduler, where adapters of an older layout find them."""

from kvlockstep.reference.kv.transfers import TierUnits, Transfer

__all__ = ["TierUnits", "Transfer"]
