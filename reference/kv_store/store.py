"""kv_store in plain Python: lists of bit patterns, a slot after the other."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.reference.errors import InvalidArgument, UnknownSlot
from kvlockstep.reference.kv.shape import KVShape, blocks_within
from kvlockstep.reference.kv_store.contract import LAYOUTS, PAD_SLOT, Rows
from kvlockstep.reference.kv_store.quantising import finite, quantised

# For each layer the rows of K and of V, and then those of their scales if there are any.
Slot = list[list[list[int]]]


class KVStore:
    """`blocks` device and `host_blocks` host blocks of `block_size` slots with KV of `shape`, all bits 0 at first.

    `layout`, one of LAYOUTS, is where an implementation puts it and changes nothing observable. What copies reads all
    its sources before it writes any target. With a `given` in the shape rows are quantised. Raises InvalidArgument.
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
                raise InvalidArgument(
                    f"write: one row of {self._row} {self._shape.given or self._shape.dtype} elements for each slot"
                )
        for slot, key, value in zip(slots, keys, values, strict=True):
            if slot != PAD_SLOT:
                self._device[slot][layer] = self._kept(key, value)

    def gather(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """The rows of K and of V in these slots. Raises UnknownSlot, InvalidArgument for an unknown layer."""
        return self._gather("gather", self._device, layer, slots, 0)

    def gather_host(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """As `gather`, from the host's slots."""
        return self._gather("gather_host", self._host, layer, slots, 0)

    def scales(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """The scales of K and of V in these slots, float32 patterns [slot][head]. Raises like `gather`."""
        return self._gather("scales", self._device, layer, slots, 2)

    def scales_host(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """As `scales`, from the host's slots."""
        return self._gather("scales_host", self._host, layer, slots, 2)

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

    def copy_rows(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies slot to slot in all layers. Raises UnknownSlot, InvalidArgument if a target comes twice."""
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        self._check("copy_rows", [*sources, *targets], len(self._device))
        self._check_once("copy_rows", targets)
        self._move(self._device, sources, self._device, targets)

    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies device blocks to host blocks. Raises UnknownSlot, InvalidArgument if a target comes twice."""
        self._copy("swap_out", self._device, self._host, pairs)

    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies host blocks to device blocks. Raises UnknownSlot, InvalidArgument if a target comes twice."""
        self._copy("swap_in", self._host, self._device, pairs)

    def strays(self) -> int:
        """Nothing lies beside the blocks."""
        return 0

    def _blank(self) -> Slot:
        widths = (self._row, self._row, self._shape.heads, self._shape.heads)[: 4 if self._shape.given else 2]
        return [[[0] * width for width in widths] for _ in range(self._shape.layers)]

    def _kept(self, key: Sequence[int], value: Sequence[int]) -> list[list[int]]:
        if not self._shape.given:
            return [list(key), list(value)]
        coded = [quantised(row, self._shape) for row in (key, value)]
        return [*(codes for codes, _ in coded), *(scales for _, scales in coded)]

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
        self, operation: str, slots: list[Slot], layer: int, wanted: Sequence[int], plane: int
    ) -> tuple[list[list[int]], list[list[int]]]:
        self._check_layer(operation, layer)
        self._check(operation, wanted, len(slots))
        keys, values = ([list(slots[s][layer][p]) for s in wanted] for p in (plane, plane + 1))
        return keys, values

    def _fits(self, row: Sequence[int]) -> bool:
        shape = self._shape
        fits = len(row) == self._row and all(0 <= bits < 256**shape.given_bytes for bits in row)
        return fits and (not shape.given or finite(row, shape.given))

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
