"""kv_store that keeps codes: int8 or fp8 in one store, and in another a float32 scale for each row of a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvlockstep.impl.kv_store.store import DTYPES, KVStore, elements
from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.kv.shape import KVShape, blocks_within
from kvlockstep.reference.kv_store.contract import Pairs, Rows
from kvlockstep.reference.kv_store.quantising import LEAST_SCALE
from kvlockstep.reference.kv_write.numbers import MOST

Gathered = tuple[list[list[int]], list[list[int]]]


class QuantisedStore:
    """As KVStore, for a shape with a `given` dtype. Meets KVStoreTarget. Without one nothing is quantised.

    `codes` keeps the codes, and `scale_store` the scales as rows [head, 1]: every copy and swap is done in both. The
    scale of a head is its largest number over the largest code. All is divided and rounded as in IEEE 754, so that
    codes are the same bits on every device.
    """

    quantises = copies_rows = True

    def __init__(
        self,
        blocks: int,
        block_size: int,
        host_blocks: int,
        shape: KVShape,
        layout: str,
        *,
        device: str = "cpu",
        kernels: bool | None = None,
    ) -> None:
        shape.check()
        self.shape, self.block_size = shape, block_size
        sizes = blocks, block_size, host_blocks
        self.codes = KVStore(*sizes, shape._replace(given=""), layout, device=device, kernels=kernels)
        scales = KVShape(shape.layers, shape.heads, 1, "float32")
        self.scale_store = KVStore(*sizes, scales, layout, device=device, kernels=kernels)
        self._stores = (self.codes, self.scale_store) if shape.given else (self.codes,)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the device blocks, with their scales."""
        return sum(store.memory_bytes for store in self._stores)

    def blocks_within(self, budget: int) -> int:
        """As KVStore.blocks_within."""
        return blocks_within(budget, self.block_size, self.shape)

    def store(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores keys[i] and values[i], [token, head, dim] of the dtype that is given, in slots[i] unless it is
        PAD_SLOT. `slots`, int64, are trusted, and so is that all numbers are finite.
        """
        if not self.shape.given:
            self.codes.store(layer, slots, keys, values)
            return
        if self.codes.moves is not None:
            from kvlockstep.impl.kv_store.quantising import write  # noqa: PLC0415

            for store in self._stores:
                assert store.moves is not None
                store.moves.before_a_write()
            codes, scales = ((store.keys(layer), store.values(layer)) for store in self._stores)
            write((keys, values), slots, codes, scales, MOST[self.shape.dtype], LEAST_SCALE)
            return
        (key_codes, key_scales), (value_codes, value_scales) = (quantise(r, self.shape.dtype) for r in (keys, values))
        self.codes.store(layer, slots, key_codes, value_codes)
        self.scale_store.store(layer, slots, key_scales, value_scales)

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        """As KVStore.write, with rows of the dtype that is given. Raises InvalidArgument for what is not finite."""
        self.codes.check_write(layer, slots)
        shape = self.shape._replace(dtype=self.shape.given or self.shape.dtype, given="")
        given = [elements(rows, len(slots), shape, self.codes.device) for rows in (keys, values)]
        if self.shape.given and not all(bool(rows.isfinite().all()) for rows in given):
            raise InvalidArgument("write: what is quantised has to be finite")
        self.store(layer, torch.tensor(slots, dtype=torch.int64, device=self.codes.device), *given)

    def gather(self, layer: int, slots: Sequence[int]) -> Gathered:
        """The codes of K and of V in these slots. Raises UnknownSlot, InvalidArgument for an unknown layer."""
        return self.codes.gather(layer, slots)

    def gather_host(self, layer: int, slots: Sequence[int]) -> Gathered:
        """As `gather`, from the host's slots."""
        return self.codes.gather_host(layer, slots)

    def scales(self, layer: int, slots: Sequence[int]) -> Gathered:
        """The scales of K and of V in these slots, float32 patterns [slot][head]. Raises like `gather`."""
        return self.scale_store.gather(layer, slots)

    def scales_host(self, layer: int, slots: Sequence[int]) -> Gathered:
        """As `scales`, from the host's slots."""
        return self.scale_store.gather_host(layer, slots)

    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        """As KVStore.copy_prefix."""
        for store in self._stores:
            store.copy_prefix(source, target, tokens)

    def copy_blocks(self, pairs: Pairs) -> None:
        """As KVStore.copy_blocks."""
        for store in self._stores:
            store.copy_blocks(pairs)

    def copy_rows(self, pairs: Pairs) -> None:
        """As KVStore.copy_rows."""
        for store in self._stores:
            store.copy_rows(pairs)

    def swap_out(self, pairs: Pairs) -> None:
        """As KVStore.swap_out."""
        for store in self._stores:
            store.swap_out(pairs)

    def swap_in(self, pairs: Pairs) -> None:
        """As KVStore.swap_in."""
        for store in self._stores:
            store.swap_in(pairs)


def on_device(*sizes: Any) -> QuantisedStore:
    """Our kernels on a card."""
    return QuantisedStore(*sizes, device="cuda")


def quantise(rows: torch.Tensor, kept: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [token, head, dim] of rows of that shape, and their scales [token, head, 1]."""
    numbers = rows.to(torch.float32)
    # Divided by a tensor: by a number a GPU multiplies with the rounded reciprocal.
    most = torch.full((1,), MOST[kept], device=rows.device)
    scales = (numbers.abs().amax(-1, keepdim=True) / most).clamp(min=LEAST_SCALE)
    quotients = (numbers / scales).clamp(-MOST[kept], MOST[kept])
    return (quotients.round() if kept == "int8" else quotients).to(DTYPES[kept]), scales
