"""Faults of kv_write: rows whose K is quantised and whose V, the rotated part, is not."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_write.numbers import decode, encode
from kvlockstep.reference.kv_write.split import (
    SplitWriter,
)


@fault("write-rotated-part-rounded", law="content_equality", seen=("mutant",))
class RotatedPartRounded(SplitWriter):
    """Beside codes of K, V is kept in the dtype that is given, but goes through fp8."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        codes, given = super()._codes(layer, plane, slot, head, row), self._geometry.given
        if plane == 0:
            return codes
        return [encode(decode(encode(decode(b, given), "float8_e4m3fn"), "float8_e4m3fn"), given) for b in codes]


@fault("write-rotated-part-scaled", law="write_isolation", seen=("mutant",))
class RotatedPartScaled(SplitWriter):
    """A scale is kept for the rotated part as well, which has none, in the place of another row's."""

    def _store(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> None:
        super()._store(layer, plane, slot, head, row)
        if plane:
            place = 4 * self._geometry.scale_at(layer, 0, self._geometry.slots - 1 - slot, head)
            self._scales[place : place + 4] = bytes(4)
