"""Faults of kv_write: the scales of quantised rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_write.contract import Rows
from kvlockstep.reference.kv_write.geometry import Geometry
from kvlockstep.reference.kv_write.numbers import MOST, decode
from kvlockstep.reference.kv_write.residual import ResidualWriter
from kvlockstep.reference.kv_write.split import (
    NearestPowerWriter,
    NormAndLowWriter,
    NormWriter,
    PowerScaleWriter,
)
from kvlockstep.reference.kv_write.writer import (
    QuantisedWriter,
)


@fault("write-scale-of-tile", law="scale_exact", seen=("mutant",))
class ScaleOfTile(QuantisedWriter):
    """The scale is that of the largest element so far, of this row or of one before it in the call."""

    _largest = 0.0

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        self._largest = 0.0
        super().write(layer, slots, keys, values)

    def _scale(self, numbers: Sequence[float]) -> float:
        self._largest = max(self._largest, super()._scale(numbers))
        return self._largest


@fault("write-scale-first-half", law="scale_exact", seen=("mutant",))
class ScaleOfFirstHalf(QuantisedWriter):
    """The scale leaves out the last element of a row."""

    def _scale(self, numbers: Sequence[float]) -> float:
        return super()._scale(numbers[:-1] or numbers)


@fault("write-scale-next-row", law="write_isolation", seen=("mutant",))
class ScaleOfNextRow(QuantisedWriter):
    """The scale of the last head is stored twice, the second time behind its row."""

    def _put_scale(self, place: int, number: float, hidden: int | None = None) -> None:
        super()._put_scale(place, number, hidden)
        super()._put_scale(place + 1, number, hidden)


@fault("write-power-below", law="scale_exact", seen=("mutant",))
class PowerBelow(PowerScaleWriter):
    """The scale is the power of two below the exact scale, so that the largest elements saturate."""

    def _scale(self, numbers: Sequence[float]) -> float:
        return super()._scale(numbers) / 2


@fault("write-scale-no-power", law="scale_exact", seen=("mutant",))
class NoPower(PowerScaleWriter):
    """The scale is exact where a reader takes its exponent alone."""

    def _scale(self, numbers: Sequence[float]) -> float:
        return max(map(abs, numbers)) / MOST[self._geometry.kept]


@fault("write-power-cut-off", law="scale_exact", seen=("mutant",))
class PowerCutOff(NearestPowerWriter):
    """The exponent of a scale is cut off where the nearest one is kept: up to half of an element is lost."""

    def _scale(self, numbers: Sequence[float]) -> float:
        exact = max(map(abs, numbers)) / MOST[self._geometry.kept]
        return math.ldexp(1.0, math.floor(math.log2(exact))) if exact else 0.0


@fault("write-norm-of-half", law="scale_exact", seen=("mutant",))
class NormOfHalf(NormWriter):
    """The length of a row leaves out its last element."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        codes = super()._codes(layer, plane, slot, head, row)
        numbers = [decode(bits, self._geometry.given) for bits in row[:-1]]
        self._put_scale(self._whole.scale_at(layer, plane, slot, head), math.hypot(*numbers))
        return codes


@fault("write-v-scales-of-k", law="scale_exact", seen=("mutant",))
class ScalesOfK(NormAndLowWriter):
    """The numbers of V are kept where they would be if V had as many of them as K has."""

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        super().open(geometry, memory, scales)
        for half in self._halves:
            half._whole = geometry._replace(value_scale="norm")


@fault("write-rest-summed", law="scale_exact", seen=("mutant",))
class RestSummed(ResidualWriter):
    """The rest of a row is kept as its length, where a reader takes it for the mean."""

    def _rest(self, units: Sequence[float]) -> float:
        return super()._rest(units) * math.sqrt(len(units))
