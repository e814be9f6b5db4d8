"""kv_store: the KV itself, in blocks on a device and on the host, as bit patterns. Sources: seeds 000, 001 and 004.

Content is compared and moved as bits, never as floats: NaNs keep their payload and -0.0 its sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kvlockstep.reference.errors import InvalidArgument, UnknownSlot
from kvlockstep.reference.kv.shape import KVShape, blocks_within

LAYOUTS = ("layer_major", "slot_major")
PAD_SLOT = -1

Rows = Sequence[Sequence[int]]


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


Slot = list[list[list[int]]]


class KVStore:
    """`blocks` device and `host_blocks` host blocks of `block_size` slots with KV of `shape`, all bits 0 at first.

    `layout`, one of LAYOUTS, is where an implementation puts it and changes nothing observable. What copies reads all
    its sources before it writes any target. Raises InvalidArgument.
    """

    def __init__(self, blocks: int, block_size: int, host_blocks: int, shape: KVShape, layout: str) -> None:
        shape.check()
        if blocks < 0 or block_size < 1 or host_blocks < 0 or layout not in LAYOUTS:
            raise InvalidArgument(f"{blocks=}, {block_size=}, {host_blocks=}, {layout=}")
        self._shape = shape
        self._size = block_size
        self._row = shape.heads * shape.head_dim
        self._device = [self._blank() for _ in range(blocks * block_size)]
        self._host = [self._blank() for _ in range(host_blocks * block_size)]

    @property
    def memory_bytes(self) -> int:
        """Bytes of the device blocks."""
        return len(self._device) * self._shape.token_bytes

    def blocks_within(self, budget: int) -> int:
        """Returns the number of blocks that fit into `budget` bytes. Raises InvalidArgument if it is negative."""
        return blocks_within(budget, self._size, self._shape)

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        """Stores row i of `keys` and of `values` in slots[i]; where that is PAD_SLOT nothing is written.

        Raises UnknownSlot, InvalidArgument for an unknown layer, a repeated slot, or rows that do not fit.
        """
        real = [slot for slot in slots if slot != PAD_SLOT]
        self._check_layer("write", layer)
        self._check("write", real, len(self._device))
        self._check_once("write", real)
        for rows in (keys, values):
            if len(rows) != len(slots) or any(not self._fits(row) for row in rows):
                raise InvalidArgument(f"write: one row of {self._row} {self._shape.dtype} elements for each slot")
        for slot, key, value in zip(slots, keys, values, strict=True):
            if slot != PAD_SLOT:
                self._device[slot][layer] = [list(key), list(value)]

    def gather(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """The rows of K and of V in these slots. Raises UnknownSlot, InvalidArgument for an unknown layer."""
        return self._gather("gather", self._device, layer, slots)

    def gather_host(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """As `gather`, from the host's slots."""
        return self._gather("gather_host", self._host, layer, slots)

    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        """Copies the first `tokens` tokens of the table `source`, and no more, into the blocks of the table `target`.

        Raises UnknownSlot, InvalidArgument if a table is too short or a target comes twice.
        """
        needed = -(-tokens // self._size)
        if tokens < 0 or needed > min(len(source), len(target)):
            raise InvalidArgument(f"copy_prefix: tokens={tokens} of {len(source)} and {len(target)} blocks")
        self._check_pairs("copy_prefix", source[:needed], self._device, target[:needed], self._device)
        self._move(self._device, self._slots(source)[:tokens], self._device, self._slots(target)[:tokens])

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks from source to target. Raises UnknownSlot, InvalidArgument if a target comes twice."""
        self._copy("copy_blocks", self._device, self._device, pairs)

    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies device blocks to host blocks. Raises UnknownSlot, InvalidArgument if a target comes twice."""
        self._copy("swap_out", self._device, self._host, pairs)

    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies host blocks to device blocks. Raises UnknownSlot, InvalidArgument if a target comes twice."""
        self._copy("swap_in", self._host, self._device, pairs)

    def _blank(self) -> Slot:
        return [[[0] * self._row, [0] * self._row] for _ in range(self._shape.layers)]

    def _slots(self, blocks: Sequence[int]) -> list[int]:
        return [block * self._size + offset for block in blocks for offset in range(self._size)]

    def _copy(self, operation: str, origin: list[Slot], goal: list[Slot], pairs: Sequence[tuple[int, int]]) -> None:
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        self._check_pairs(operation, sources, origin, targets, goal)
        self._move(origin, self._slots(sources), goal, self._slots(targets))

    def _move(self, origin: list[Slot], sources: list[int], goal: list[Slot], targets: list[int]) -> None:
        read = [[[list(row) for row in planes] for planes in origin[slot]] for slot in sources]
        for slot, content in zip(targets, read, strict=True):
            goal[slot] = content

    def _gather(
        self, operation: str, slots: list[Slot], layer: int, wanted: Sequence[int]
    ) -> tuple[list[list[int]], list[list[int]]]:
        self._check_layer(operation, layer)
        self._check(operation, wanted, len(slots))
        return [list(slots[s][layer][0]) for s in wanted], [list(slots[s][layer][1]) for s in wanted]

    def _fits(self, row: Sequence[int]) -> bool:
        return len(row) == self._row and all(0 <= bits < 256**self._shape.item_bytes for bits in row)

    def _check_layer(self, operation: str, layer: int) -> None:
        if not 0 <= layer < self._shape.layers:
            raise InvalidArgument(f"{operation}: layer={layer} is not one of 0..{self._shape.layers - 1}")

    def _check(self, operation: str, numbers: Sequence[int], count: int) -> None:
        for number in numbers:
            if not 0 <= number < count:
                raise UnknownSlot(f"{operation}: {number} is not one of 0..{count - 1}")

    def _check_once(self, operation: str, targets: Sequence[int]) -> None:
        if len(set(targets)) < len(targets):
            raise InvalidArgument(f"{operation}: a target comes twice in {list(targets)}")

    def _check_pairs(
        self, operation: str, sources: Sequence[int], origin: list[Slot], targets: Sequence[int], goal: list[Slot]
    ) -> None:
        self._check(operation, sources, len(origin) // self._size)
        self._check(operation, targets, len(goal) // self._size)
        self._check_once(operation, targets)
