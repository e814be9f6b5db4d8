"""The judge of kv_write: it opens the target, writes, and looks at every byte of its buffers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.calls import call_target
from kvlockstep.models.core.model import Divergence, Factory
from kvlockstep.models.core.picture import NOTHING, Picture, Table
from kvlockstep.models.core.taking import taken
from kvlockstep.models.core.whole import wholes
from kvlockstep.models.kv_write import goals
from kvlockstep.models.kv_write.scope import KVWriteScope, geometry_of, unfit
from kvlockstep.models.requests.adapter import answered, make_adapter, read_traits
from kvlockstep.models.requests.checks import Checks
from kvlockstep.properties.kv_write import laws
from kvlockstep.properties.kv_write.laws import Buffers, Write, place_name
from kvlockstep.properties.kv_write.rows import Row, both_signs, row_of
from kvlockstep.properties.law import ERROR_CONTRACT
from kvlockstep.reference.kv_write.contract import WriteTraits
from kvlockstep.reference.kv_write.geometry import GUARD, SCALES, Geometry
from kvlockstep.reference.kv_write.layout import layout_of
from kvlockstep.reference.kv_write.numbers import ELEMENT_BYTES, encode
from kvlockstep.reference.kv_write.residual import ResidualWriter
from kvlockstep.reference.kv_write.split import (
    LowEndWriter,
    NearestPowerWriter,
    NormWriter,
    PowerScaleWriter,
    SplitWriter,
    UnitScaleWriter,
)
from kvlockstep.reference.kv_write.writer import (
    HiddenZeroWriter,
    KVWriter,
    QuantisedWriter,
    TensorScaleWriter,
    ZeroPointWriter,
)

TWINS: dict[str, type[KVWriter]] = {
    "none": KVWriter,
    "row": QuantisedWriter,
    "zero": ZeroPointWriter,
    "hidden": HiddenZeroWriter,
    "tensor": TensorScaleWriter,
    "one": UnitScaleWriter,
    "low": LowEndWriter,
    "norm": NormWriter,
    "residual": ResidualWriter,
}
POWERS: dict[str, dict[str, type[KVWriter]]] = {
    "above": {"row": PowerScaleWriter},
    "nearest": {"row": NearestPowerWriter},
}
# The scales that the caller sets, those of K first: powers of two, so that no quotient is rounded twice.
TENSOR_SCALES = (0.25, 2.0)
AROUND = 3


class WriteJudge:
    """Has a method for each operation. Each raises Divergence where a law does not hold."""

    def __init__(self, factory: Factory, scope: KVWriteScope, checks: Checks) -> None:
        self.adapter = make_adapter(factory)
        self.traits: WriteTraits = read_traits(self.adapter, WriteTraits)
        self.geometry = geometry_of(scope, self.traits)
        if wrong := unfit(self.geometry, self.traits):
            raise Divergence(ERROR_CONTRACT.id, wrong)
        self.checks = checks
        self.goals_met: Counter[str] = Counter()
        self._twin = _twin(self.geometry, self.traits.power_scales)
        self._wrong: tuple[str, ...] = ()
        self._written: set[tuple[int, int]] = set()
        memory = _unwritten(layout_of(self.geometry).places * ELEMENT_BYTES[self.geometry.kept])
        scales = self._unwritten_scales()
        answered(self.adapter.open, self.geometry, memory, scales)
        self.buffers = Buffers(memory, scales)
        found = self.look()
        if found != self.buffers:
            raise Divergence(
                ERROR_CONTRACT.id, "the buffers of a target that was just opened are not those that it was given"
            )

    def write(self, layer: int, slots: list[int], stamps: list[int]) -> str:
        """Writes the rows of stamps to slots of a layer."""
        keys, values = self._rows(stamps)
        answered(self.adapter.write, layer, list(slots), [list(row) for row in keys], [list(row) for row in values])
        write = Write(self.geometry, self.traits, layer, slots, keys, values, self.buffers, self.look())
        goals.notice_write(self.goals_met, write, stamps, self._written)
        try:
            self._judge(write)
        except Divergence as divergence:
            self._wrong = self._around(write)
            divergence.details = (*divergence.details, *self._wrong)
            raise
        self.buffers = write.after
        self._written |= {(layer, slot) for slot in slots}
        return ""

    def gather(self, layer: int, slots: list[int]) -> str:
        """Reads slots of a layer."""
        answer = answered(self.adapter.gather, layer, list(slots))
        found = taken(lambda: _two(answer), answer, self.adapter.gather, "the rows of K and the rows of V")
        write = Write(self.geometry, self.traits, layer, slots, [], [], self.buffers, self.look())
        self.checks.check(laws.purity, write)
        self.checks.check(laws.gather_exact, write._replace(after=self.buffers), found)
        self.goals_met["gathered"] += any((layer, slot) in self._written for slot in slots)
        self.goals_met["gathered_twice"] += len(set(slots)) < len(slots)
        return ""

    def repeat(self, layer: int, slots: list[int], stamps: list[int]) -> None:
        """Writes again what was judged before."""
        keys, values = self._rows(stamps)
        answered(self.adapter.write, layer, list(slots), keys, values)
        self.buffers = self.look()
        self._written |= {(layer, slot) for slot in slots}

    def look(self) -> Buffers:
        """The buffers of the target as they are now."""
        memory = self._bytes(self.adapter.memory, layout_of(self.geometry).places * ELEMENT_BYTES[self.geometry.kept])
        if not self.traits.keeps_scales:
            return Buffers(memory, self._unwritten_scales())
        width = ELEMENT_BYTES[self.geometry.scale_dtype]
        return Buffers(memory, self._bytes(self.adapter.scales, self.geometry.scale_places * width))

    def picture(self) -> Picture:
        """The geometry, and the elements around the first wrong one."""
        rows = tuple((name, str(value)) for name, value in self.geometry._asdict().items())
        tables = [Table("geometry", ("size", "value"), rows)]
        if self._wrong:
            tables.append(Table("expected beside found", (), tuple((line,) for line in self._wrong)))
        return NOTHING._replace(tables=tuple(tables))

    def _judge(self, write: Write) -> None:
        # Laws that name a cause come first: padding before any stray byte, and the scale before the codes by it.
        check = self.checks.check
        check(laws.padding, write)
        check(laws.write_isolation, write)
        scales = {self.geometry.scale_of(plane) for plane in (0, 1)}
        if "none" in scales:
            check(laws.content_equality, write)
            if self.traits.repeats:
                check(laws.repeats, write)
        if self.geometry.scale == "none":
            return
        if any(SCALES[scale] for scale in scales):
            check(laws.scale_exact, write)
        check(laws.codes, write)
        check(laws.decoded_within_bound, write)

    def _rows(self, stamps: list[int]) -> tuple[list[Row], list[Row]]:
        """The rows of K and of V of stamps."""
        keys, values = ([row_of(stamp, plane, self.geometry) for stamp in stamps] for plane in (0, 1))
        if self.traits.one_signed or self.geometry.scale == "none":
            return keys, values
        keys, values = ([both_signs(row, p, self.geometry) for row in rows] for p, rows in enumerate((keys, values)))
        return keys, values

    def _around(self, write: Write) -> tuple[str, ...]:
        """The elements around the first wrong one, as the twin has them beside what was found, with their places."""
        self._twin.open(self.geometry, *write.before)
        self._twin.write(write.layer, write.slots, write.keys, write.values)
        width, kept = ELEMENT_BYTES[self.geometry.kept], self._twin.memory()
        wanted, found = ([m[i : i + width] for i in range(0, len(m), width)] for m in (kept, write.after.memory))
        first = laws.first_wrong(write)
        if first is None:
            return ()
        lines = []
        for place in range(max(0, first - AROUND), min(len(wanted), first + AROUND + 1)):
            bits, got = (int.from_bytes(element[place], "little") for element in (wanted, found))
            mark = "  <- differs" if bits != got else ""
            name = place_name(self.geometry, place)
            lines.append(f"place {place}: expected {bits:0{2 * width}x}, found {got:0{2 * width}x}  {name}{mark}")
        return tuple(lines)

    def _unwritten_scales(self) -> bytes:
        geometry = self.geometry
        if geometry.scale == "tensor":
            numbers = [TENSOR_SCALES[place % 2] for place in range(geometry.scale_places)]
            width = ELEMENT_BYTES[geometry.scale_dtype]
            return b"".join(encode(number, geometry.scale_dtype).to_bytes(width, "little") for number in numbers)
        if geometry.scale_places == 2 * GUARD:
            return b""
        return _unwritten(geometry.scale_places * ELEMENT_BYTES[geometry.scale_dtype])

    def _bytes(self, look: Any, wanted: int) -> bytes:
        answer = call_target(look)
        if not isinstance(answer, bytes) or len(answer) != wanted:
            what = f"{len(answer)} bytes" if isinstance(answer, bytes) else type(answer).__name__
            raise Divergence(ERROR_CONTRACT.id, f"{look.__name__} returned {what}, not {wanted} bytes")
        return answer


def _twin(geometry: Geometry, power_scales: str) -> KVWriter:
    """The reference that keeps K and V as the geometry says."""
    twins: dict[str, type[KVWriter]] = {**TWINS, **POWERS.get(power_scales, {})}
    keys, values = (twins[geometry.scale_of(plane)] for plane in (0, 1))
    if keys is values:
        return keys()
    twin = SplitWriter()
    twin.writers = keys, values
    return twin


def _unwritten(count: int) -> bytes:
    """Bytes of a buffer that nobody has written to: no two neighbours alike, and no zeros."""
    return bytes(1 + i * 37 % 251 for i in range(count))


def _two(answer: Any) -> tuple[list[list[int]], list[list[int]]]:
    keys, values = ([wholes(row) for row in bounded(rows)] for rows in answer)
    return keys, values
