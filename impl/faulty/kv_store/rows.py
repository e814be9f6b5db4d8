"""Faults of kv_store: writing and gathering rows."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_store import PAD_SLOT, KVStore, Rows

Gathered = tuple[list[list[int]], list[list[int]]]


@fault("store-one-nan", law="content_equality", seen=("FastDeploy#5544 (b)",))
class OneNaN(KVStore):
    """Writes convert fp8 through floats, so a NaN loses its sign."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        def plain(rows: Rows) -> list[list[int]]:
            return [
                [0x7F if bits == 0xFF and self._shape.dtype == "float8_e4m3fn" else bits for bits in r] for r in rows
            ]

        super().write(layer, slots, plain(keys), plain(values))


@fault("store-padding-wraps", law="write_isolation", seen=("vllm#43810",))
class PaddingWraps(KVStore):
    """Rows for padding slots are written to the last slot."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        super().write(layer, slots, keys, values)
        for slot, key, value in zip(slots, keys, values, strict=True):
            if slot == PAD_SLOT and self._device:
                self._device[-1][layer] = [list(key), list(value)]


@fault("store-padding-shifts", law="content_equality", seen=("vllm#13418",))
class PaddingShifts(KVStore):
    """Padding slots are dropped but their rows are not, so later rows shift."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        super().write(layer, slots, keys, values)
        real = [slot for slot in slots if slot != PAD_SLOT]
        super().write(layer, real, keys[: len(real)], values[: len(real)])


@fault("store-both-keys", law="content_equality", seen=("LMCache#4463",))
class WritesBothInK(KVStore):
    """V of the first layer is written with the data of K."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        super().write(layer, slots, keys, values if layer else keys)


@fault("store-first-layer", law="content_equality", seen=("LMCache#4463",))
class TakesFirstLayer(KVStore):
    """A write to any other layer also overwrites the first layer."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        super().write(layer, slots, keys, values)
        if layer:
            super().write(0, slots, keys, values)


@fault("store-gather-order", law="gather_exact", seen=("llama.cpp#3840",))
class GatherInOrder(KVStore):
    """A gather returns each slot once, in ascending order."""

    def gather(self, layer: int, slots: Sequence[int]) -> Gathered:
        return super().gather(layer, slots if len(slots) == len(self._device) else sorted(slots))


@fault("store-cuts-bits", law="no_aliasing", seen=("FastDeploy#5544 (b)",))
class CutsWideElements(KVStore):
    """Elements that are too wide silently lose their upper bits."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        wide = 256**self._shape.item_bytes
        super().write(layer, slots, *([[bits % wide for bits in row] for row in rows] for rows in (keys, values)))


@fault("store-index-error", law="error_contract", seen=("mutant",))
class IndexErrors(KVStore):
    """A slot past the end raises IndexError."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        for slot in slots:
            self._device[slot]
        super().write(layer, slots, keys, values)
