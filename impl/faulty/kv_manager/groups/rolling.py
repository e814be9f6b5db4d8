"""Faults of kv_manager with a rolling group: where its positions are, and what a fork does with its blocks."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.groups.contract import needed
from kvlockstep.reference.kv_manager.groups.rolling import RollingManager

FULL, ROLLING = range(2)


@fault("kv-rolling-one-off", law="content_equality", seen=("mutant",))
class OneOff(RollingManager):
    """A chunk that fills the buffer reads what is in front of it from one slot too early on."""

    def slots(self, rid: str, group: int) -> list[int | None]:
        slots, computed = super().slots(rid, group), self._computed[rid]
        if group == ROLLING and self._stop[rid] - computed >= self.reach:
            for p in needed(self.groups[group], computed, computed):
                slots[p] = self._slot(rid, group, (p - 1) % self.reach)
        return slots


@fault("kv-rolling-keeps-head", law="coverage", seen=("mutant",))
class KeepsHead(RollingManager):
    """Of a chunk that is longer than the buffer, the head is written and not the end."""

    def slots(self, rid: str, group: int) -> list[int | None]:
        slots, start, stop = super().slots(rid, group), self._computed[rid], self._stop[rid]
        if group == ROLLING and stop - start > self.reach:
            slots[start:] = [self._slot(rid, group, p % self.reach) for p in range(start, start + self.reach)]
            slots += [None] * (stop - len(slots))
        return slots


@fault("kv-rolling-fork-shares", law="write_isolation", seen=("mutant",))
class ForkShares(RollingManager):
    """A child writes to the buffer of its parent, where the parent still reads."""

    def reset(self) -> None:
        super().reset()
        self._shares: dict[str, list[int]] = {}

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        copies = super().fork(rid, child)
        if copies is not None:
            self._shares[child] = self._tables[rid][ROLLING]
        return copies

    def _slot(self, rid: str, group: int, position: int) -> int:
        table = self._shares.get(rid) if group == ROLLING else None
        block = (table or self._tables[rid][group])[position // self.block_size]
        return block * self.block_size + position % self.block_size


@fault("kv-rolling-fork-copies-full", law="content_equality", seen=("mutant",))
class ForkCopiesFull(RollingManager):
    """A fork copies the blocks of full attention, and leaves the buffer of the child as it was."""

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        copies = super().fork(rid, child)
        return copies and copies[: len(self._tables[rid][FULL])]
