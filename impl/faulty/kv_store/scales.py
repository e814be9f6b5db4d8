"""Faults of kv_store: scales of quantised rows, copies of rows, and writes beside all blocks."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_store.copies import Pairs
from kvlockstep.impl.faulty.kv_store.rows import Gathered
from kvlockstep.reference.kv_store import KVStore, Rows, Slot
from kvlockstep.reference.kv_write.numbers import decode, encode


class Quantising(KVStore):
    """The reference as a target that quantises; where nothing is quantised there is no scale to get wrong."""

    quantises = True


@fault("store-forgets-scales", law="content_equality", seen=("mutant",))
class ForgetsScales(Quantising):
    """A block copy moves the codes, and leaves the scales of the target as they were."""

    def copy_blocks(self, pairs: Pairs) -> None:
        scales = [[planes[2:] for planes in slot] for slot in self._device]
        super().copy_blocks(pairs)
        for slot, kept in zip(self._device, scales, strict=True):
            for planes, rows in zip(slot, kept, strict=True):
                planes[2:] = rows


@fault("store-scales-first-head", law="content_equality", seen=("mutant",))
class ScaleOfTheFirstHead(Quantising):
    """A write gives every head of a row the scale of the first head."""

    def _kept(self, key: Sequence[int], value: Sequence[int]) -> list[list[int]]:
        codes_and_scales = super()._kept(key, value)
        return [*codes_and_scales[:2], *([row[0]] * len(row) for row in codes_and_scales[2:])]


@fault("store-scales-first-layer", law="content_equality", seen=("mutant",))
class ScalesOfTheFirstLayer(Quantising):
    """A swap to the host takes the scales of the first layer for all layers."""

    def swap_out(self, pairs: Pairs) -> None:
        super().swap_out(pairs)
        for slot in self._slots([target for _, target in pairs]):
            for planes in self._host[slot][1:]:
                planes[2:] = [list(row) for row in self._host[slot][0][2:]]


@fault("store-prefix-scales-whole", law="write_isolation", seen=("mutant",))
class PrefixScalesWholeBlock(Quantising):
    """A prefix copy takes the scales of all of its last block, past the end of the prefix."""

    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        before = [[planes[2:] for planes in slot] for slot in self._device]
        super().copy_prefix(source, target, tokens)
        whole = -(-tokens // self._size) * self._size
        for old, new in list(zip(self._slots(source), self._slots(target), strict=False))[tokens:whole]:
            for planes, rows in zip(self._device[new], before[old], strict=True):
                planes[2:] = [list(row) for row in rows]


@fault("store-scale-halved", law="content_equality", seen=("mutant",))
class ScaleForTheOtherCodes(Quantising):
    """Scales are kept for codes up to 255, twice as fine as the codes that are written."""

    def _kept(self, key: Sequence[int], value: Sequence[int]) -> list[list[int]]:
        codes_and_scales = super()._kept(key, value)
        halves = [[encode(decode(bits, "float32") / 2, "float32") for bits in row] for row in codes_and_scales[2:]]
        return [*codes_and_scales[:2], *halves]


@fault("store-scales-swapped", law="gather_exact", seen=("mutant",))
class ScalesOfTheOtherPlane(Quantising):
    """A read of a few scales returns those of V before those of K."""

    def scales(self, layer: int, slots: Sequence[int]) -> Gathered:
        keys, values = super().scales(layer, slots)
        return (keys, values) if len(slots) == len(self._device) else (values, keys)


@fault("store-fits-rows", law="no_aliasing", seen=("mutant",))
class TakesBadRows(Quantising):
    """A row that does not fit its shape is quantised all the same, as zeros."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        zeros = [0] * self._row

        def fitting(rows: Rows) -> list[list[int]]:
            return [list(row) if self._fits(row) else zeros for row in rows]

        super().write(layer, slots, fitting(keys), fitting(values))


@fault("store-rows-one-by-one", law="content_equality", seen=("mutant",))
class RowsOneByOne(KVStore):
    """Rows are copied one after the other, so a chain passes on what it just received."""

    copies_rows = True

    def copy_rows(self, pairs: Pairs) -> None:
        super().copy_rows(pairs)
        for pair in pairs:
            if pair[0] in {target for _, target in pairs}:
                super().copy_rows([pair])


@fault("store-past-the-end", law="write_isolation", seen=("mutant",))
class CopiesPastTheEnd(KVStore):
    """A copy to the last block writes a word behind all blocks."""

    guarded = True
    _written = 0

    def _move(self, origin: list[Slot], sources: list[int], goal: list[Slot], targets: list[int]) -> None:
        super()._move(origin, sources, goal, targets)
        if goal is self._device and len(goal) - 1 in targets:
            self._written = 8

    def strays(self) -> int:
        return self._written
