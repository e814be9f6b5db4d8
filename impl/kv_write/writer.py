"""kv_write on tensors: by indexing, which any device can, or by a Triton kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvlockstep.impl.kv_write.arena import DTYPES
from kvlockstep.impl.kv_write.far import arena_for
from kvlockstep.reference.kv_write.contract import Rows
from kvlockstep.reference.kv_write.geometry import LAYOUTS, Geometry
from kvlockstep.reference.kv_write.layout import layout_of
from kvlockstep.reference.kv_write.numbers import MOST


class Writer:
    """Writes bits into a cache of any layout on `device`. Meets KVWriteTarget.

    With `kernels`, which a GPU has unless told otherwise, a Triton kernel writes; else tensors are indexed.
    """

    layouts = " ".join(LAYOUTS)
    own_strides = own_dims = can_gather = True

    def __init__(self, device: str = "cpu", kernels: bool | None = None, least_elements: int = 0) -> None:
        self._device, self._least = device, least_elements
        self._kernels = torch.device(device).type == "cuda" if kernels is None else kernels

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        """Makes a cache of this geometry with these bytes."""
        self.arena = arena_for(geometry, memory, scales, self._device, self._least)
        self._planes = layout_of(self.arena.geometry).planes

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        """Writes rows of patterns; nothing where the slot is negative."""
        where = self.arena.slots(slots)
        for plane, rows in enumerate((keys, values)):
            self.store(layer, plane, where, self.arena.rows(rows, plane))

    def store(self, layer: int, plane: int, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Writes rows [token, head, dim] to slots (int64) of K or V of a layer."""
        if self._kernels:
            self._launch(layer, plane, slots, rows)
            return
        real = slots >= 0
        slots, rows = slots[real], rows[real]
        codes = self._codes(layer, plane, slots, rows)
        places = self._places(layer, plane, slots)
        self.arena.flat.view(torch.uint8).view(-1, codes.element_size())[places.flatten()] = codes.reshape(-1, 1).view(
            torch.uint8
        )

    def memory(self) -> bytes:
        """The bytes of the flat buffer."""
        return self.arena.memory()

    def scales(self) -> bytes:
        """The bytes of the buffer of scales."""
        return self.arena.scales()

    def gather(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """The rows of K and of V in these slots, as patterns."""
        keys, values = (self._load(layer, plane, self.arena.slots(slots)) for plane in (0, 1))
        return keys, values

    def _codes(self, layer: int, plane: int, slots: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return rows.contiguous()

    def _launch(self, layer: int, plane: int, slots: torch.Tensor, rows: torch.Tensor) -> None:
        from kvlockstep.impl.kv_write.kernels import write  # noqa: PLC0415

        where = self._planes[layer][plane]
        strides = where.block, where.offset, where.head, where.outer
        scales, most = self._scaled(layer, plane)
        cache = self.arena.flat[where.base :]
        write(rows, slots, cache, strides, self.arena.geometry.block_size, where.pack, scales, most)

    def _scaled(self, layer: int, plane: int) -> tuple[torch.Tensor | None, float]:
        return None, 0.0

    def _places(self, layer: int, plane: int, slots: torch.Tensor) -> torch.Tensor:
        """The places of the elements of rows in these slots: [token, head, dim]."""
        geometry, where = self.arena.geometry, self._planes[layer][plane]
        size = geometry.block_size
        heads = torch.arange(geometry.heads, device=slots.device) * where.head
        element = torch.arange(geometry.dim(plane), device=slots.device)
        inside = element // where.pack * where.outer + element % where.pack
        starts = where.base + slots // size * where.block + slots % size * where.offset
        return starts[:, None, None] + heads[:, None] + inside

    def _load(self, layer: int, plane: int, slots: torch.Tensor) -> list[list[int]]:
        flat = self.arena.flat
        found = flat.view(torch.uint8).view(-1, flat.element_size())[self._places(layer, plane, slots).flatten(1)]
        rows: list[list[list[int]]] = found.cpu().tolist()
        return [[int.from_bytes(bytes(element), "little") for element in row] for row in rows]


class QuantisedWriter(Writer):
    """Keeps int8 or fp8 codes, and a float32 scale for each row of a head."""

    kept = "int8 float8_e4m3fn"
    scale = "row"
    keeps_scales = True
    can_gather = False

    def _codes(self, layer: int, plane: int, slots: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        kept = self.arena.geometry.kept
        numbers = rows.to(torch.float32)
        scale = numbers.abs().amax(-1) / MOST[kept]
        self._row_scales(layer, plane)[slots] = scale
        quotient = numbers / torch.where(scale > 0, scale, 1.0)[..., None]
        quotient = quotient.clamp(-MOST[kept], MOST[kept])
        return (quotient if kept == "float8_e4m3fn" else quotient.round()).to(DTYPES[kept])

    def _scaled(self, layer: int, plane: int) -> tuple[torch.Tensor | None, float]:
        return self._row_scales(layer, plane), MOST[self.arena.geometry.kept]

    def _row_scales(self, layer: int, plane: int) -> torch.Tensor:
        return self.arena.row_scales(layer, plane).flatten(0, 1)


def on_device(least_elements: int = 0) -> Writer:
    """Our kernel on a card."""
    return Writer("cuda", least_elements=least_elements)


def rows_on_device() -> QuantisedWriter:
    """Our quantising kernel on a card."""
    return QuantisedWriter("cuda")
