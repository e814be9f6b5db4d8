"""Faults of kv_write: which rows are written or read, and with what bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_write.contract import PAD_SLOT, Rows
from kvlockstep.reference.kv_write.numbers import decode, encode
from kvlockstep.reference.kv_write.split import (
    SplitWriter,
)
from kvlockstep.reference.kv_write.writer import (
    KVWriter,
)


@fault("write-odd-element", law="content_equality", seen=("mutant",))
class LastElementLost(KVWriter):
    """The last element of a head is left out where the head dim is odd."""

    def _store(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> None:
        super()._store(layer, plane, slot, head, row[: len(row) // 2 * 2])


@fault("write-through-floats", law="content_equality", seen=("FastDeploy#5544 (b)",))
class ThroughFloats(KVWriter):
    """Bits are moved as numbers, so that NaNs lose their payload."""

    def _codes(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> Sequence[int]:
        given = self._geometry.given
        return [encode(math.nan, given) if math.isnan(decode(bits, given)) else bits for bits in row]


@fault("write-padding-shifts", law="content_equality", seen=("vllm#13418",))
class PaddingShifts(KVWriter):
    """Padding slots are dropped and their rows are not, so that later rows shift."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        real = [slot for slot in slots if slot != PAD_SLOT]
        super().write(layer, real, keys[: len(real)], values[: len(real)])


@fault("write-repeats-mixed", law="repeats", seen=("mutant",))
class RepeatsAreAdded(KVWriter):
    """Rows of a slot that comes twice are merged bit by bit."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        super().write(layer, slots, _merged(slots, keys), values)


@fault("write-rotated-part-twice", law="repeats", seen=("mutant",))
class RotatedPartTwice(SplitWriter):
    """Beside codes of K, the rotated parts of a slot that comes twice are merged bit by bit."""

    repeats = True

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        super().write(layer, slots, keys, _merged(slots, values))


def _merged(slots: Sequence[int], rows: Rows) -> Rows:
    """The rows, each with the bits of those before it that are for the same slot."""
    merged = [list(row) for row in rows]
    for i, slot in enumerate(slots):
        for j in range(i):
            if slots[j] == slot:
                merged[i] = [a | b for a, b in zip(merged[i], merged[j], strict=True)]
    return merged


@fault("write-gather-sorted", law="gather_exact", seen=("mutant",))
class GathersSorted(KVWriter):
    """A gather returns the rows in the order of their slots."""

    def gather(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        return super().gather(layer, sorted(slots))


@fault("write-gather-clears", law="purity", seen=("mutant",))
class GatherClears(KVWriter):
    """A gather clears the first element of each row that it has read."""

    def gather(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        found = super().gather(layer, slots)
        for slot in slots:
            self._put(self._place(layer, 0, slot, 0, 0), 0)
        return found
