"""What the adapters of kernels that write KV share: the cache of a geometry where Triton runs, and its bytes."""

from __future__ import annotations

from kvlockstep.impl.interpreted import DEVICE, INTERPRETED
from kvlockstep.impl.kv_write.far import arena_for
from kvlockstep.reference.kv_write.geometry import Geometry


class ArenaWriter:
    """The part of KVWriteTarget that no kernel has to do with. `least_elements` make the cache a far one."""

    interpreted = INTERPRETED

    def __init__(self, least_elements: int = 0) -> None:
        self._least = least_elements

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        self.arena = arena_for(geometry, memory, scales, DEVICE, self._least)

    def memory(self) -> bytes:
        return self.arena.memory()

    def scales(self) -> bytes:
        return self.arena.scales()
