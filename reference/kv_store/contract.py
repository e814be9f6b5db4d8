"""The contract of kv_store: what a target must offer, and its traits. Sources: seeds 000, 001 and 004.

Content is compared and moved as bits, never as floats: NaNs keep their payload and -0.0 its sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvlockstep.reference.traits import trait

LAYOUTS = ("layer_major", "slot_major")
PAD_SLOT = -1
COPIES = ("copy_blocks", "copy_prefix", "swap_out", "swap_in")

Rows = Sequence[Sequence[int]]
Pairs = Sequence[tuple[int, int]]


@runtime_checkable
class KVStoreTarget(Protocol):
    """Factory `make(blocks, block_size, host_blocks, shape, layout)`, `layout` one of LAYOUTS.

    Elements are bit patterns, unsigned numbers as wide as the dtype; a row is one token's `heads` x `head_dim`
    elements of K or of V in one layer, and slot = block * block_size + offset.
    """

    @property
    def memory_bytes(self) -> int: ...
    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None: ...
    def gather(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]: ...
    def gather_host(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]: ...
    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None: ...
    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None: ...
    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None: ...
    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None: ...
    def blocks_within(self, budget: int) -> int: ...


class KVStoreOptional(Protocol):
    """Methods of a kv_store that may be left out. A target that has one announces it with a trait."""

    def scales(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """The scales of K and of V in these slots, float32 patterns [slot][head]. Raises like `gather`."""

    def scales_host(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """As `scales`, from the host's slots."""

    def copy_rows(self, pairs: Pairs) -> None:
        """Copies slot to slot in all layers, as if all at once. Raises like `copy_blocks`."""

    def strays(self) -> int:
        """Returns how many bytes beside its device blocks have changed since it was made. Changes nothing."""


@dataclass(frozen=True)
class StoreTraits:
    """What a kv_store target declares of itself; read from attributes of the same names."""

    quantises: bool = trait(
        False,
        "Rows are kept as codes with a float32 scale for each head of a row. The `given` of the shape is then the "
        "dtype of rows that are written.",
        method=("scales", "scales_host"),
    )
    copies: str = trait(
        " ".join(COPIES), "The copies that it is judged by, by name with spaces between. The others are never called."
    )
    copies_rows: bool = trait(False, "There is `copy_rows(pairs)`.", method="copy_rows")
    shifts: int = trait(
        0,
        "If not 0, `copy_rows` moves up to so many rows of a block to its front, as many of each block that it names, "
        "and no others. That is what the update of a conv state does to it.",
    )
    apart: bool = trait(False, "No block, and no slot, is a source and a target in one call on the device.")
    word: int = trait(1, "A row of K or of V takes a multiple of so many bytes.", least=1)
    guarded: bool = trait(False, "There is `strays()`.", method="strays")
