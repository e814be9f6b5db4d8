"""A kv_store whose few blocks lie far apart in a big one: what its kernels do where offsets are large."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvlockstep.impl.kv_store.store import KVStore
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv_store.contract import Rows, StoreTraits
from kvlockstep.reference.traits import traits_of

# Engines number the blocks of a cache in int32, so more of them are no case of theirs.
MOST_BLOCKS = (1 << 31) - 1

Pairs = Sequence[tuple[int, int]]
Gathered = tuple[list[list[int]], list[list[int]]]


class FarStore:
    """Meets KVStoreTarget with `blocks` of the blocks of a KVStore of at least `least_bytes`, or of MOST_BLOCKS.

    The first block is its first, the last its last. `make` is KVStore or what else makes such a store; it has the
    traits of that. `options` are the KVStore's: device, kernels. Raises InvalidArgument.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        host_blocks: int,
        shape: KVShape,
        layout: str,
        *,
        least_bytes: int,
        make: Callable[..., Any] = KVStore,
        **options: Any,
    ) -> None:
        self._size, self._blocks = block_size, blocks
        self._block_bytes = block_size * shape.token_bytes
        self._total = max(blocks, min(MOST_BLOCKS, -(-least_bytes // self._block_bytes))) if blocks else 0
        self.store = make(self._total, block_size, host_blocks, shape, layout, **options)
        self.blocks_within = self.store.blocks_within
        self.gather_host = self.store.gather_host
        for name in ("scales_host", "strays", *traits_of(StoreTraits)):
            if hasattr(self.store, name):
                setattr(self, name, getattr(self.store, name))

    @property
    def memory_bytes(self) -> int:
        """Bytes of the blocks in use."""
        return self._blocks * self._block_bytes

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        """As KVStore.write."""
        self.store.write(layer, [self._slot(slot) for slot in slots], keys, values)

    def gather(self, layer: int, slots: Sequence[int]) -> Gathered:
        """As KVStore.gather."""
        return self._gathered(self.store.gather, layer, slots)

    def scales(self, layer: int, slots: Sequence[int]) -> Gathered:
        """As QuantisedStore.scales."""
        return self._gathered(self.store.scales, layer, slots)

    def copy_rows(self, pairs: Pairs) -> None:
        """As KVStore.copy_rows."""
        self.store.copy_rows([(self._slot(source), self._slot(target)) for source, target in pairs])

    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        """As KVStore.copy_prefix."""
        self.store.copy_prefix([self._block(b) for b in source], [self._block(b) for b in target], tokens)

    def copy_blocks(self, pairs: Pairs) -> None:
        """As KVStore.copy_blocks."""
        self.store.copy_blocks([(self._block(source), self._block(target)) for source, target in pairs])

    def swap_out(self, pairs: Pairs) -> None:
        """As KVStore.swap_out."""
        self.store.swap_out([(self._block(source), target) for source, target in pairs])

    def swap_in(self, pairs: Pairs) -> None:
        """As KVStore.swap_in."""
        self.store.swap_in([(source, self._block(target)) for source, target in pairs])

    def _gathered(self, look: Callable[[int, list[int]], Gathered], layer: int, slots: Sequence[int]) -> Gathered:
        return look(layer, [self._slot(slot) for slot in slots])

    def _block(self, block: int) -> int:
        """Returns the place of a block; an unknown block stays unknown."""
        if block < 0:
            return block
        if block >= self._blocks:
            return self._total + block
        return block * (self._total - 1) // max(1, self._blocks - 1)

    def _slot(self, slot: int) -> int:
        """Returns the places of slots; padding stays as it is."""
        return slot if slot < 0 else self._block(slot // self._size) * self._size + slot % self._size
