"""kv_store on torch tensors: paged KV of a real dtype on a device and in (pinned) host memory, moved as integers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvlockstep.reference.errors import InvalidArgument, UnknownSlot
from kvlockstep.reference.kv.shape import KVShape, blocks_within
from kvlockstep.reference.kv_store.contract import LAYOUTS, PAD_SLOT, Rows

if TYPE_CHECKING:
    from kvlockstep.impl.kv_store.moves import KernelMoves

Pairs = Sequence[tuple[int, int]]

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "int8": torch.int8,
}
WORDS: dict[int, tuple[torch.dtype, Any]] = {
    1: (torch.uint8, np.uint8),
    2: (torch.int16, np.uint16),
    4: (torch.int32, np.uint32),
}


class KVStore:
    """`blocks` device and `host_blocks` host blocks of `block_size` slots. Meets KVStoreTarget of the contract.

    `kv` is the KV on `device`: [layer, K/V, block, offset, head, dim] in layout "layer_major", and in "slot_major",
    where the layers of a token lie together, [K/V, block, offset, layer, head, dim]. Host blocks are contiguous. They
    are pinned if the device is a GPU, or lie on the card `host_device`, which the device must reach as a peer.
    Everything is moved as integers, so that the bits of an element arrive as they are. With `kernels`, which a GPU has
    unless told otherwise, Triton kernels do that, and swaps run on a side stream (see
    KernelMoves, in `moves`). Raises InvalidArgument.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        host_blocks: int,
        shape: KVShape,
        layout: str,
        *,
        device: str = "cpu",
        host_device: str = "cpu",
        kernels: bool | None = None,
    ) -> None:
        shape.check()
        if shape.given:
            raise InvalidArgument(f"shape={shape}: a KVStore keeps rows as they are given; a QuantisedStore quantises")
        if blocks < 0 or block_size < 1 or host_blocks < 0 or layout not in LAYOUTS:
            raise InvalidArgument(f"{blocks=}, {block_size=}, {host_blocks=}, {layout=}")
        layers, row, dtype = shape.layers, [shape.heads, shape.head_dim], shape.dtype
        self.shape = shape
        self.block_size = block_size
        self.device = torch.device(device)
        self._blocks, self._host_blocks = blocks, host_blocks
        self._word, self._numpy_word = WORDS[shape.item_bytes]
        self._layered = layout == "layer_major"
        outer, token = ((layers, 2), row) if self._layered else ((2,), [layers, *row])
        self._token = prod(token)
        planes, width = prod(outer), block_size * self._token
        self._planes = self._room(planes, blocks, width)
        pinned = self.device.type == "cuda" and host_device == "cpu"
        self._host = torch.zeros(host_blocks, planes, width, dtype=self._word, device=host_device, pin_memory=pinned)
        if host_device != "cpu":
            _reach(self._planes, self._host)
        self._bits = self._planes.view(*outer, blocks, block_size, *token)
        self._host_bits = self._host.view(host_blocks, *outer, block_size, *token).movedim(0, len(outer))
        self.kv = self._bits.view(DTYPES[dtype])
        self.moves: KernelMoves | None = None
        if self.device.type == "cuda" if kernels is None else kernels:
            from kvlockstep.impl.kv_store.moves import KernelMoves  # noqa: PLC0415

            self.moves = KernelMoves(self._planes, self._host, shape, layout, self._token)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the device blocks."""
        return self._planes.numel() * self._planes.element_size()

    def blocks_within(self, budget: int) -> int:
        """Returns the number of blocks that fit into `budget` bytes. Raises InvalidArgument if it is negative."""
        return blocks_within(budget, self.block_size, self.shape)

    def keys(self, layer: int) -> torch.Tensor:
        """The K of one layer, [block, offset, head, dim], a view."""
        return self._layer(self.kv, layer, 0)

    def values(self, layer: int) -> torch.Tensor:
        """The V of one layer, [block, offset, head, dim], a view."""
        return self._layer(self.kv, layer, 1)

    def store(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores keys[i] and values[i], [token, head, dim] of the dtype of `kv`, in slots[i], unless that is PAD_SLOT.

        `slots`, int64, are trusted: they are in range and differ.
        """
        if self.moves is not None:
            self.moves.store(layer, slots, keys, values)
            return
        real = slots != PAD_SLOT
        if not bool(real.all()):
            slots, keys, values = slots[real], keys[real], values[real]
        for plane, rows in enumerate((keys, values)):
            target = self._layer(self._bits, layer, plane).flatten(0, 1)
            target.index_copy_(0, slots, rows.view(self._word))

    def load(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of these slots (int64, trusted), each [token, head, dim]."""
        if self.moves is not None:
            k, v = self.moves.load(layer, slots)
            return k.view(self.kv.dtype), v.view(self.kv.dtype)
        k, v = self._rows(self._bits, layer, slots)
        return k.view(self.kv.dtype), v.view(self.kv.dtype)

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        """Stores row i of `keys` and of `values` in slots[i]; where that is PAD_SLOT nothing is written.

        Raises UnknownSlot, InvalidArgument for an unknown layer, a repeated slot, or rows that do not fit.
        """
        self.check_write(layer, slots)
        k, v = (elements(rows, len(slots), self.shape, self.device) for rows in (keys, values))
        self.store(layer, self._index(slots), k, v)

    def check_write(self, layer: int, slots: Sequence[int]) -> None:
        """Raises UnknownSlot, InvalidArgument for an unknown layer or a slot that comes twice."""
        real = [slot for slot in slots if slot != PAD_SLOT]
        self._check_layer("write", layer)
        _check("write", real, self._blocks * self.block_size)
        _check_once("write", real)

    def gather(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """The rows of K and of V in these slots. Raises UnknownSlot, InvalidArgument for an unknown layer."""
        self._check_layer("gather", layer)
        _check("gather", slots, self._blocks * self.block_size)
        return self._patterns(*(rows.view(self._word) for rows in self.load(layer, self._index(slots))))

    def gather_host(self, layer: int, slots: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """As `gather`, from the host's slots."""
        self._check_layer("gather_host", layer)
        _check("gather_host", slots, self._host_blocks * self.block_size)
        if self.moves is not None:
            self.moves.settle()
        return self._patterns(
            *self._rows(self._host_bits, layer, torch.tensor(slots, dtype=torch.int64, device=self._host.device))
        )

    def copy_prefix(self, source: Sequence[int], target: Sequence[int], tokens: int) -> None:
        """Copies the first `tokens` tokens of the table `source`, and no more, into the blocks of the table `target`.

        Raises UnknownSlot, InvalidArgument if a table is too short or a target comes twice.
        """
        needed = -(-tokens // self.block_size)
        if tokens < 0 or needed > min(len(source), len(target)):
            raise InvalidArgument(f"copy_prefix: tokens={tokens} of {len(source)} and {len(target)} blocks")
        pairs = list(zip(source[:needed], target[:needed], strict=True))
        self._check_pairs("copy_prefix", pairs, self._blocks, self._blocks)
        self._move(pairs, tokens % self.block_size)

    def copy_blocks(self, pairs: Pairs) -> None:
        """Copies whole blocks from source to target. Raises UnknownSlot, InvalidArgument if a target comes twice."""
        self._check_pairs("copy_blocks", pairs, self._blocks, self._blocks)
        self._move(list(pairs), 0)

    def copy_rows(self, pairs: Pairs) -> None:
        """Copies slot to slot in all layers, as if all at once. Raises like `copy_blocks`."""
        slots = self._blocks * self.block_size
        self._check_pairs("copy_rows", pairs, slots, slots)
        sources, targets = self._index(list(pairs)).view(-1, 2).unbind(1)
        for layer in range(self.shape.layers):
            self.store(layer, targets, *self.load(layer, sources))

    def swap_out(self, pairs: Pairs) -> None:
        """Copies device blocks to host blocks. Raises UnknownSlot, InvalidArgument if a target comes twice."""
        self._check_pairs("swap_out", pairs, self._blocks, self._host_blocks)
        if self.moves is not None:
            self.moves.swap_out(pairs)
            return
        for source, target, n in runs(pairs):
            blocks = self._planes.narrow(1, source, n).transpose(0, 1)
            self._host.narrow(0, target, n).copy_(blocks, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def swap_in(self, pairs: Pairs) -> None:
        """Copies host blocks to device blocks. Raises UnknownSlot, InvalidArgument if a target comes twice."""
        self._check_pairs("swap_in", pairs, self._host_blocks, self._blocks)
        if self.moves is not None:
            self.moves.swap_in(pairs)
            return
        for source, target, n in runs(pairs):
            blocks = self._host.narrow(0, source, n).to(self.device, non_blocking=True)
            self._planes.narrow(1, target, n).copy_(blocks.transpose(0, 1))

    def _room(self, planes: int, blocks: int, width: int) -> torch.Tensor:
        """Words for all planes [plane, block, word], all 0."""
        return torch.zeros(planes, blocks, width, dtype=self._word, device=self.device)

    def _move(self, pairs: list[tuple[int, int]], tail: int) -> None:
        """Copies blocks as if all at once, of the last pair only `tail` tokens unless it is 0.

        Sources that are overwritten are set aside first; then the order of the copies does not matter.
        """
        if self.moves is not None:
            self.moves.move(pairs, tail)
            return
        whole, part = (pairs[:-1], pairs[-1:]) if tail else (pairs, [])
        overwritten = sorted({t for s, t in pairs if s != t}.intersection(s for s, t in pairs if s != t))
        aside = {block: i for i, block in enumerate(overwritten)}
        staged = self._planes.index_select(1, self._index(overwritten)) if overwritten else self._planes
        for group, width in ((whole, self._planes.shape[2]), (part, tail * self._token)):
            self._copy(self._planes, [(s, t) for s, t in group if s != t and s not in aside], width)
            self._copy(staged, [(aside[s], t) for s, t in group if s != t and s in aside], width)

    def _copy(self, origin: torch.Tensor, pairs: Pairs, width: int) -> None:
        """Copies the first `width` elements of blocks of `origin` [plane, block, element]."""
        planes = self._planes.narrow(2, 0, width)
        origin = origin.narrow(2, 0, width)
        if self.device.type != "cpu" and len(pairs) > 1:
            sources, targets = self._index(pairs).unbind(1)
            planes.index_copy_(1, targets, origin.index_select(1, sources))
            return
        for source, target, n in runs(pairs):
            planes.narrow(1, target, n).copy_(origin.narrow(1, source, n))

    def _layer(self, kv: torch.Tensor, layer: int, plane: int) -> torch.Tensor:
        return kv[layer, plane] if self._layered else kv[plane].select(2, layer)

    def _rows(self, kv: torch.Tensor, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        blocks, offsets = slots // self.block_size, slots % self.block_size
        return self._layer(kv, layer, 0)[blocks, offsets], self._layer(kv, layer, 1)[blocks, offsets]

    def _patterns(self, k: torch.Tensor, v: torch.Tensor) -> tuple[list[list[int]], list[list[int]]]:
        keys, values = ((t.flatten(1).cpu().numpy().view(self._numpy_word).tolist()) for t in (k, v))
        return keys, values

    def _index(self, numbers: Sequence[int] | Pairs) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)

    def _check_layer(self, operation: str, layer: int) -> None:
        if not 0 <= layer < self.shape.layers:
            raise InvalidArgument(f"{operation}: layer={layer} is not one of 0..{self.shape.layers - 1}")

    def _check_pairs(self, operation: str, pairs: Pairs, sources: int, targets: int) -> None:
        for source, target in pairs:
            if not (0 <= source < sources and 0 <= target < targets):
                _check(operation, [source], sources)
                _check(operation, [target], targets)
        if len(pairs) > 1:
            _check_once(operation, [target for _, target in pairs])


def on_device(*sizes: Any) -> KVStore:
    """Our kernels on a card."""
    return KVStore(*sizes, device="cuda")


def runs(pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Pairs as (first source, first target, how many) where both go up by one."""
    source = target = n = 0
    for s, t in sorted(pairs):
        if n and s == source + n and t == target + n:
            n += 1
            continue
        if n:
            yield source, target, n
        source, target, n = s, t, 1
    if n:
        yield source, target, n


def elements(rows: Rows, tokens: int, shape: KVShape, device: torch.device) -> torch.Tensor:
    """Rows of bit patterns as [token, head, dim] of the dtype. Raises InvalidArgument."""
    heads, dim = shape.heads, shape.head_dim
    _, word = WORDS[shape.item_bytes]
    try:
        numbers = np.array(rows, dtype=np.int64).reshape(tokens, heads * dim)
        fits = len(rows) == tokens and not np.any((numbers < 0) | (numbers >= 256**shape.item_bytes))
    except (ValueError, OverflowError):
        fits = False
    if not fits:
        raise InvalidArgument(f"write: one row of {heads * dim} {shape.dtype} elements for each slot")
    words = torch.from_numpy(numbers.astype(word).view(_signed(word)))
    return words.view(tokens, heads, dim).to(device).view(DTYPES[shape.dtype])


def _signed(word: Any) -> Any:
    return {np.uint8: np.uint8, np.uint16: np.int16, np.uint32: np.int32}[word]


def _check(operation: str, numbers: Sequence[int], count: int) -> None:
    for number in numbers:
        if not 0 <= number < count:
            raise UnknownSlot(f"{operation}: {number} is not one of 0..{count - 1}")


def _check_once(operation: str, targets: Sequence[int]) -> None:
    if len(set(targets)) < len(targets):
        raise InvalidArgument(f"{operation}: a target comes twice in {list(targets)}")


def _reach(here: torch.Tensor, there: torch.Tensor) -> None:
    """Lets kernels of one card read and write what lies on another. Raises InvalidArgument if they cannot."""
    one, other = here.device, there.device
    if not (one.type == other.type == "cuda" and torch.cuda.can_device_access_peer(one, other)):
        raise InvalidArgument(f"host_device={other}: {one} cannot reach it as a peer")
    # The first copy between two cards makes each of them a peer of the other.
    word = torch.zeros(1, device=one).to(other).to(one)
    torch.cuda.synchronize(word.device)
