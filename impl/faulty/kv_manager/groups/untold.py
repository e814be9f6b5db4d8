"""Faults of kv_manager with groups that cannot tell what it holds: sums that are off by more than that leaves open."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.variants.groups import CannotTell
from kvlockstep.reference.kv_manager.groups.request import Request, touched

WINDOW = 1


@fault("kv-untold-read-evictable", law="accounting", seen=("mutant",))
class ReadEvictable(CannotTell):
    """avail counts the published blocks that a window still reads as evictable."""

    def avail(self, pool: str = "") -> int:
        window = self._pool(WINDOW)
        held = {block for request in self._live.values() for block in request.held(WINDOW)}
        return super().avail(pool) + sum(block in window.key_of for block in held if pool == "window")


@fault("kv-untold-slid-lost", law="accounting", seen=("mutant",))
class SlidLost(CannotTell):
    """A block that slides off leaves the table and is never freed."""

    def _slide(self, g: int, request: Request) -> None:
        table = request.tables[g]
        for place in range(min(touched(self.groups[g], request.computed, request.computed).start, len(table))):
            table[place] = None
