"""The flat buffer of a kv_write target as tensors: a cache of any geometry in it, and its bytes for the judge.

Adapters of engines use it as well, so that a kernel gets views with the strides of the geometry. Where codes share
bytes, the dim of a view counts bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvlockstep.reference.kv_write.contract import Rows
from kvlockstep.reference.kv_write.geometry import SCALES, Geometry
from kvlockstep.reference.kv_write.layout import Plane, layout_of
from kvlockstep.reference.kv_write.numbers import ELEMENT_BYTES

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
    "float4_e2m1fn": torch.uint8,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "uint4": torch.uint8,
    "uint3": torch.uint8,
    "uint2": torch.uint8,
}


def tensor_of(data: bytes, dtype: str, device: str | torch.device) -> torch.Tensor:
    """The bytes as a tensor of one dimension."""
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return raw.view(DTYPES[dtype]).to(device)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The bytes of a contiguous tensor, wherever it is."""
    return tensor.view(torch.uint8).cpu().numpy().tobytes()


class Arena:
    """A cache of `geometry`, whose flat buffer and buffer of scales have these bytes at first."""

    def __init__(self, geometry: Geometry, memory: bytes, scales: bytes, device: str | torch.device = "cpu") -> None:
        self.geometry, self.device = geometry, torch.device(device)
        self.flat = tensor_of(memory, geometry.kept, device)
        self.flat_scales = tensor_of(scales, geometry.scale_dtype, device)
        self._planes = layout_of(geometry).planes

    def memory(self) -> bytes:
        """The bytes of the flat buffer."""
        return bytes_of(self.flat)

    def scales(self) -> bytes:
        """The bytes of the buffer of scales."""
        return bytes_of(self.flat_scales)

    def cache(self, layer: int, plane: int) -> torch.Tensor:
        """K or V of a layer as a view [block, offset, head, dim], with the strides of its layout.

        In layout "packed" K is [block, head, dim / pack, offset, pack] and V [block, head, dim, offset].
        """
        geometry, where = self.geometry, self._planes[layer][plane]
        blocks, size, heads, dim = geometry.blocks, geometry.block_size, geometry.heads, geometry.stored(plane)
        if geometry.layout == "packed" and plane == 0:
            shape = (blocks, heads, dim // where.pack, size, where.pack)
            return self._view(where, shape, (where.block, where.head, where.outer, where.offset, 1))
        if geometry.layout == "packed":
            return self._view(where, (blocks, heads, dim, size), (where.block, where.head, where.outer, where.offset))
        return self._view(where, (blocks, size, heads, dim), (where.block, where.offset, where.head, 1))

    def joint(self, layer: int) -> torch.Tensor:
        """K and V of a layer in layout "joint": [block, offset, head, K and V]."""
        geometry, where = self.geometry, self._planes[layer][0]
        shape = (geometry.blocks, geometry.block_size, geometry.heads, geometry.stored(0) + geometry.stored(1))
        return self._view(where, shape, (where.block, where.offset, where.head, 1))

    def paired(self, layer: int) -> torch.Tensor:
        """K and V of a layer in layout "paired": [slot, heads of K and of V, dim]."""
        geometry, where = self.geometry, self._planes[layer][0]
        return self._view(
            where, (geometry.slots, 2 * geometry.heads, geometry.stored(0)), (where.offset, where.head, 1)
        )

    def row_scales(self, layer: int, plane: int) -> torch.Tensor:
        """The scales of the rows of a plane: [block, offset, head], with a second number [block, offset, head, 2]."""
        geometry = self.geometry
        start = geometry.scale_at(layer, plane, 0, 0)
        numbers = SCALES[geometry.scale_of(plane)]
        view = self.flat_scales[start : start + geometry.slots * geometry.heads * numbers]
        shape = (geometry.blocks, geometry.block_size, geometry.heads)
        return view.view(*shape, numbers) if numbers > 1 else view.view(*shape)

    def tensor_scale(self, layer: int, plane: int) -> torch.Tensor:
        """The scale of a plane, a tensor of one element."""
        place = self.geometry.scale_at(layer, plane, 0, 0)
        return self.flat_scales[place : place + 1]

    def rows(self, rows: Rows, plane: int, tail: int = 0) -> torch.Tensor:
        """Rows of patterns as [token, head, dim] of the dtype that is given, `tail` elements free behind each token."""
        geometry, width = self.geometry, ELEMENT_BYTES[self.geometry.given]
        wide = geometry.heads * geometry.dim(plane)
        data = b"".join(bits.to_bytes(width, "little") for row in rows for bits in row)
        dense = tensor_of(data, geometry.given, self.device).view(len(rows), geometry.heads, geometry.dim(plane))
        if not tail:
            return dense
        apart = torch.full((len(rows), wide + tail), 1, dtype=dense.dtype, device=self.device)
        apart[:, :wide] = dense.view(len(rows), wide)
        return apart[:, :wide].view(len(rows), geometry.heads, geometry.dim(plane))

    def slots(self, slots: Sequence[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Slot numbers as a tensor."""
        return torch.tensor(slots, dtype=dtype, device=self.device)

    def _view(self, where: Plane, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
        return self.flat.as_strided(shape, strides, where.base)
