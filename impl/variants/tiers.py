"""Ways of a target with a tier that are right and unusual, of managers and of schedulers alike."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from kvlockstep.reference.kv.transfers import TierUnits
from kvlockstep.reference.kv_manager.tier import Key
from kvlockstep.reference.kv_manager.transferring import Transferring


class HearsAtOnce(Transferring):
    """Takes in the end of a transfer when it is told, and waits for no poll."""

    def complete(self, id: Hashable, ok: bool) -> None:
        super().complete(id, ok)
        self.poll()


class DropsEveryThirdStore(Transferring):
    """A tier that has no time for every third store."""

    _offered = 0

    def _store(self, key: Key, block: Any) -> None:
        self._offered += 1
        if self._offered % 3:
            super()._store(key, block)


class WithholdsForgotten(Transferring):
    """Keeps out of the new pool and tier what transfers from before a reset use, until they have ended."""

    # The blocks and the units of each.
    _forgotten: dict[Hashable, tuple[list[Any], list[int]]]

    def poll(self) -> None:
        for id in [id for id, _ in self._completed if id in self._forgotten]:
            self._end_forgotten(*self._forgotten.pop(id))
            self._completed = [done for done in self._completed if done[0] != id]
        super().poll()

    def tier(self, name: str) -> TierUnits:
        units = super().tier(name)
        return units._replace(storing=[*units.storing, *self._withheld_units()])

    def _pinned(self) -> set[Any]:
        return super()._pinned().union(*(blocks for blocks, _ in self._forgotten.values()))

    def _withheld_units(self) -> set[int]:
        """The units of forgotten transfers; several loads may read the same one."""
        return {unit for _, units in self._forgotten.values() for unit in units}

    def _end_forgotten(self, blocks: list[Any], units: list[int]) -> None:
        for block in blocks:
            self._drop(block)
        self._tier._free += [unit for unit in units if unit not in self._withheld_units()]
