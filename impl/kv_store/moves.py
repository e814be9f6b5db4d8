"""Kernels of a KVStore: stores, loads, copies, swaps on a side stream, stamps."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from kvlockstep.impl import kernels as kv_kernels
from kvlockstep.impl.kernels import BlockCopy, Blocks, Rows, as_words, word_bytes
from kvlockstep.reference.kv.shape import KVShape

Pairs = Sequence[tuple[int, int]]

SMALL_BYTES = 1 << 16
STAGE_BYTES = 1 << 28


class KernelMoves:
    """Kernels over `planes` [plane, block, element] on a device and `host` [block, plane, element], pinned if there is
    a GPU; `token` elements of a plane belong to a token.

    A swap runs on a stream of its own, after what the current stream was given before it. What the current stream gets
    after a `swap_in` waits for it; after a `swap_out` only what writes device blocks waits. Use one stream at a time.

    `device_blocks` are the planes as Blocks, `within` copies between them, `plane_count` and `block_words` are the
    planes and the words of a block in one of them.
    """

    def __init__(self, planes: torch.Tensor, host: torch.Tensor, shape: KVShape, layout: str, token: int) -> None:
        self._planes = planes
        self.plane_count, blocks, width = planes.shape
        layers, row = shape.layers, shape.heads * shape.head_dim
        self._word = word_bytes(token * shape.item_bytes)
        self._row_word = word_bytes(row * shape.item_bytes)
        ratio, self._row_ratio = self._word // shape.item_bytes, self._row_word // shape.item_bytes
        self._token, self.block_words = token // ratio, width // ratio
        self.device_blocks = self._blocks(planes.view(-1), blocks * self.block_words, self.block_words)
        self._host = self._blocks(host.view(-1), self.block_words, self.plane_count * self.block_words)
        self.within = self._between(self.device_blocks, self.device_blocks)
        self._outward = self._between(self.device_blocks, self._host)
        self._inward = self._between(self._host, self.device_blocks)
        plane = blocks * width // self._row_ratio
        words = row // self._row_ratio
        strides = (2 * plane, plane, words) if layout == "layer_major" else (words, plane, layers * words)
        self.rows = Rows(as_words(planes, self._row_word), *strides, words)
        self.layers = layers
        self._shape = shape
        self._side = torch.cuda.Stream(planes.device) if planes.is_cuda else None  # type: ignore[no-untyped-call]
        self._swapping_out: torch.cuda.Event | None = None
        if self._side is not None:
            planes.record_stream(self._side)
            weakref.finalize(self, self._side.synchronize)

    def store(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores keys[i] and values[i], [token, head, dim], in slots[i]; not where that is negative."""
        self.before_a_write()
        k, v = (as_words(rows.contiguous(), self._row_word) for rows in (keys, values))
        kv_kernels.scatter(self.rows, layer, slots.contiguous(), k, v)

    def load(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The words of K and V in these slots, [token, head, dim] in integers of the elements' size."""
        shape = (len(slots), self._shape.heads, self._shape.head_dim)
        k, v = (torch.empty(shape, dtype=self._planes.dtype, device=self._planes.device) for _ in range(2))
        kv_kernels.gather(
            self.rows, layer, slots.contiguous(), as_words(k, self._row_word), as_words(v, self._row_word)
        )
        return k, v

    def move(self, pairs: Pairs, tail: int) -> None:
        """Copies device blocks as if all at once, of the last pair only `tail` tokens unless that is 0."""
        self.before_a_write()
        if len(pairs) == 1:
            source, target = pairs[0]
            if source != target:
                self.within.one(source, target, tail * self._token)
            return
        tail = 0 if pairs and pairs[-1][0] == pairs[-1][1] else tail * self._token
        moved = [(s, t) for s, t in pairs if s != t]
        overwritten = {t for _, t in moved}.intersection(s for s, _ in moved)
        if not overwritten:
            self._copy(self.within, moved, tail)
            return
        aside = {block: i for i, block in enumerate(sorted(overwritten))}
        stage = self._stage(len(aside), True)
        self._copy(self._between(self.device_blocks, stage), list(aside.items()), 0)
        last = moved[-1][0] in aside
        direct = [pair for pair in moved if pair[0] not in aside]
        indirect = [(aside[s], t) for s, t in moved if s in aside]
        self._copy(self.within, direct, 0 if last else tail)
        self._copy(self._between(stage, self.device_blocks), indirect, tail if last else 0)

    def swap_out(self, pairs: Pairs) -> None:
        """Copies device blocks to host blocks; `settle` before the host reads them."""
        with self._beside():
            self.copy_out(pairs)
        if self._side is not None:
            self._swapping_out = self._side.record_event()

    def swap_in(self, pairs: Pairs) -> None:
        """Copies host blocks to device blocks."""
        with self._beside():
            self.copy_in(pairs)
        if self._side is not None:
            torch.cuda.current_stream(self._planes.device).wait_event(self._side.record_event())

    def copy_out(self, pairs: Pairs) -> None:
        """As `swap_out`, on the current stream, whose order is then up to the caller.

        Kernels write to the host slowly, so blocks are gathered on the device first, unless they are few and small.
        """
        block = self.plane_count * self.block_words
        if len(pairs) * block * self._word <= SMALL_BYTES or not self._planes.is_cuda:
            self._copy(self._outward, pairs, 0)
            return
        at_once = max(1, STAGE_BYTES // (block * self._word))
        ordered = sorted(pairs, key=lambda pair: pair[1])
        for first in range(0, len(ordered), at_once):
            part = ordered[first : first + at_once]
            stage = self._stage(len(part), False)
            self._copy(self._between(self.device_blocks, stage), [(s, i) for i, (s, _) in enumerate(part)], 0)
            for begin, end in _neighbours([target for _, target in part]):
                goal = self._host.words[part[begin][1] * block :][: (end - begin) * block]
                goal.copy_(stage.words[begin * block : end * block], non_blocking=True)

    def copy_in(self, pairs: Pairs) -> None:
        """As `swap_in`, on the current stream, whose order is then up to the caller."""
        self._copy(self._inward, pairs, 0)

    def settle(self) -> None:
        """Waits until all swaps are done."""
        if self._side is not None:
            self._side.synchronize()

    def stamp(self, slots: torch.Tensor, stamps: torch.Tensor) -> None:
        """Writes stamps[i] (int64) to every plane of slots[i] (int64), in each another form."""
        self.before_a_write()
        kv_kernels.stamp_fill(self.rows, self.layers, slots.contiguous(), stamps.contiguous())

    def verify(self, slots: torch.Tensor, stamps: torch.Tensor) -> torch.Tensor:
        """Counts the words in the planes of slots[i] that are not those of stamps[i]: int32 [slot], on the device."""
        return kv_kernels.stamp_verify(self.rows, self.layers, slots.contiguous(), stamps.contiguous())

    def before_a_write(self) -> None:
        """Lets the current stream wait for a swap that still reads device blocks."""
        if self._swapping_out is not None:
            torch.cuda.current_stream(self._planes.device).wait_event(self._swapping_out)
            self._swapping_out = None

    def _blocks(self, elements: torch.Tensor, plane_stride: int, block_stride: int) -> Blocks:
        return Blocks(as_words(elements, self._word), plane_stride, block_stride)

    def _stage(self, blocks: int, by_plane: bool) -> Blocks:
        """Room for so many blocks on the device, [plane, block, word] or else [block, plane, word]."""
        planes, width, device = self.plane_count, self.block_words, self._planes.device
        words = torch.empty(blocks * planes * width, dtype=self.device_blocks.words.dtype, device=device)
        strides = (blocks * width, width) if by_plane else (width, planes * width)
        return Blocks(words, *strides)

    def _between(self, origin: Blocks, goal: Blocks) -> BlockCopy:
        return BlockCopy(origin, goal, self.plane_count, self.block_words)

    def _copy(self, copy: BlockCopy, pairs: Pairs, tail: int) -> None:
        if len(pairs) == 1:
            copy.one(*pairs[0], tail)
        elif pairs:
            pinned = torch.tensor(pairs, dtype=torch.int64, pin_memory=self._planes.is_cuda)
            copy.many(pinned.to(self._planes.device, non_blocking=True), tail)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """On the side stream, after what the current stream was given so far."""
        if self._side is None:
            yield
            return
        self._side.wait_stream(torch.cuda.current_stream(self._planes.device))
        with torch.cuda.stream(self._side):
            yield


def _neighbours(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Returns the begin and the end of each run of consecutive numbers."""
    begin = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield begin, i
            begin = i
