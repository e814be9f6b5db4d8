"""Faults of kv_write: where in memory a row goes."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_write.contract import PAD_SLOT, Rows
from kvlockstep.reference.kv_write.writer import (
    KVWriter,
)


@fault("write-pad-wraps", law="padding", seen=("vllm#43810",))
class PaddingWraps(KVWriter):
    """Padding is written to the last slot of its layer."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        last = self._geometry.slots - 1
        padding = [i for i, slot in enumerate(slots) if slot == PAD_SLOT]
        super().write(layer, [last] * len(padding), [keys[i] for i in padding], [values[i] for i in padding])
        super().write(layer, slots, keys, values)


@fault("write-strides-of-k", law="write_isolation", seen=("flashinfer#527",))
class StridesOfK(KVWriter):
    """V is written with the strides of K."""

    def _place(self, layer: int, plane: int, slot: int, head: int, element: int) -> int:
        block, offset = divmod(slot, self._geometry.block_size)
        where = self._planes[layer][0]._replace(base=self._planes[layer][plane].base)
        return min(where.at(block, offset, head, element), len(self._memory) // self._width - 1)


@fault("write-dense-tokens", law="write_isolation", seen=("flashinfer#527",))
class DenseTokens(KVWriter):
    """Tokens are taken to lie next to one another, whatever gap is between them."""

    def _place(self, layer: int, plane: int, slot: int, head: int, element: int) -> int:
        gap = self._geometry.value_gap if plane else self._geometry.key_gap
        return super()._place(layer, plane, slot, head, element) - gap * (slot % self._geometry.block_size)


@fault("write-16-bits", law="write_isolation", seen=("flashinfer#3136",))
class NarrowPlaces(KVWriter):
    """Places are computed in too few bits, so that the far end of the buffer wraps around to its start."""

    def _place(self, layer: int, plane: int, slot: int, head: int, element: int) -> int:
        return super()._place(layer, plane, slot, head, element) % 128


@fault("write-tail-tile", law="write_isolation", seen=("mutant",))
class TailTile(KVWriter):
    """A row of a head is written in tiles of four elements, and the last tile is not masked."""

    def _store(self, layer: int, plane: int, slot: int, head: int, row: Sequence[int]) -> None:
        super()._store(layer, plane, slot, head, row)
        last = self._geometry.heads - 1
        if head == last and self._geometry.layout == "NHD":
            place = self._place(layer, plane, slot, head, 0)
            for element in range(len(row), -(-len(row) // 4) * 4):
                self._put(min(place + element, len(self._memory) // self._width - 1), 0)
