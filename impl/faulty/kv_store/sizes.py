"""Faults of kv_store: sizes in bytes."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_store import KVStore


@fault("store-two-bytes", law="agreement", seen=("seed 001", "seed 004"))
class TwoBytes(KVStore):
    """Memory is computed as if every dtype had two bytes."""

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes * 2 // self._shape.item_bytes


@fault("store-rounds-up", law="accounting", seen=("mutant",))
class RoundsUp(KVStore):
    """A memory budget is rounded up to whole blocks."""

    def blocks_within(self, budget: int) -> int:
        super().blocks_within(budget)
        return -(-budget // (self._size * self._shape.token_bytes))
