"""kv_manager with groups on the paged cache of transformers (5.24.0): full attention and sliding layers.

A sliding allocator gives each request a buffer of `sliding_window` slots, the contract's rolling group: position p is
in slot p % sliding_window, a forward reads its past before it writes, and of a longer chunk only the end is kept. Slots
are those of the engine's own read and write indices. With sliding layers the engine shares no prefix.
Allocators take sectors from one pool, so the contract's block is a sector here. Where both have as many layers, that is
one block of either. Otherwise a sector is cut into blocks of its allocator, which several requests may have.
Source: transformers/generation/continuous_batching, cache.py and cache_allocators/, beside those of manager.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from kvlockstep.impl.engines.transformers.manager import CacheMemory, TransformersKVManager, aligned_head_dim, cache_of
from kvlockstep.reference.kv_manager.groups.contract import Group

try:
    import torch
    from transformers import GptOssConfig, MistralConfig
    from transformers.generation.continuous_batching.cache_allocators import FULL_ATTENTION, SLIDING_ATTENTION
except ImportError as error:
    raise ImportError(
        f"the transformers targets with windows need torch and transformers >= 5.24 ({error}); "
        "get it with: pip install 'kvlockstep[engines]'"
    ) from error

EVEN = SLIDING_ATTENTION, FULL_ATTENTION, SLIDING_ATTENTION, FULL_ATTENTION
ALONE = SLIDING_ATTENTION, SLIDING_ATTENTION
# Sectors of two blocks of sliding layers, or of three of full attention.
PACKED = SLIDING_ATTENTION, FULL_ATTENTION, SLIDING_ATTENTION, FULL_ATTENTION, SLIDING_ATTENTION


class TransformersWindowManager(TransformersKVManager):
    """A paged cache of a model with these `layers` and this `window`, with memory for `blocks` blocks of all layers.

    With `tensors`, `memory` is the engine's own KV tensor, in int64; for this a sector must be one block.
    """

    prefix_cache = False

    def __init__(
        self, blocks: int, block_size: int, layers: tuple[str, ...], window: int, tensors: bool = False
    ) -> None:
        heads, dtype = (2, torch.int64) if tensors else (1, torch.uint8)
        # A page alone fills the alignment, so that a sector is no larger than the blocks ask for.
        head_dim = aligned_head_dim(1, heads, dtype, block_size)
        self._cache = cache_of(_config(layers, window, heads, head_dim), blocks, block_size, dtype)
        self._allocators = list(self._cache.cache_allocators.values())
        self._pool = self._cache.pool
        self.groups = tuple(_group(allocator) for allocator in self._allocators)
        self.block_size = self.groups[0].block_size
        self.total = self._cache.num_sectors * self.block_size
        packed = any(allocator.blocks_per_sector > 1 for allocator in self._allocators)
        # A fork copies blocks, which are only parts of sectors there.
        self.can_fork = not packed
        # Others may have what is left of the last sector of a request, so its next block may take another one.
        self.late_release = packed
        self._kv = SharedMemory(self._cache, block_size) if tensors else None  # type: ignore[assignment]
        self.memory = {"kv": self._kv} if tensors else None  # type: ignore[assignment]
        self._forget_requests()

    def slots(self, rid: str, group: int = 0) -> list[int | None]:  # type: ignore[override]
        allocator = self._allocators[group]
        if allocator.layer_type == FULL_ATTENTION:
            allocated = len(allocator.block_table[rid]) * allocator.tokens_per_page
            return [self._slot(allocator, row) for row in allocator.get_read_indices(rid, 0, allocated)]
        past, n = self._scheduled(rid)
        # Behind the past there are the places at which the new tokens are put among what was read.
        read = allocator.get_read_indices(rid, past, n)[: -n or None]
        written = allocator.get_write_indices(rid, past, n)
        slots: list[int | None] = [None] * (past - len(read))
        slots += [self._slot(allocator, row) for row in read]
        return slots + [None if row == allocator.write_trash_index else self._slot(allocator, row) for row in written]

    def held(self, rid: str, group: int) -> list[int]:
        allocator = self._allocators[group]
        return list(dict.fromkeys(block // allocator.blocks_per_sector for block in allocator.block_table[rid]))

    def preempt(self, rid: str) -> None:
        super().preempt(rid)
        # What is scheduled behind this is a batch of its own, which begins so.
        self._pool.try_to_free_sectors()

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        parent = self._active[rid]
        due: dict[str, tuple[list[int], list[int]]] = {name: ([], []) for name in self._cache.cache_allocators}
        self._pool.try_to_free_sectors()
        if not self._cache.prepare_fork_request(parent, [child], due):
            return None
        self._active[child] = parent.fork(child)
        return [pair for sources, targets in due.values() for pair in zip(sources, targets, strict=True)]

    def avail(self) -> int:
        return len(self.free_blocks())

    def free_now(self) -> int:
        return len(self.free_blocks())

    def free_slots(self) -> Iterable[int] | None:
        return self.free_blocks()

    def free_blocks(self) -> list[int]:
        """The sectors that are free, or will be as soon as a batch is scheduled: those with no block in use."""
        whole = [
            sector
            for free in self._pool._free_blocks
            for sector, leaves in free.trees.items()
            if len(leaves) == free.elems_per_tree
        ]
        return [*self._pool.free_sectors, *whole]

    def limbo(self) -> int:
        """A sector is held, or free at once."""
        return 0

    def _scheduled(self, rid: str) -> tuple[int, int]:
        """The tokens of a request in front of this step, and those that the step computes."""
        future = self._batch.get(rid)
        n = future.query_length if future else 0
        launched = not self._scheduling
        return self._active[rid].position_offset - n * launched, n

    def _slot(self, allocator: Any, row: int) -> int:
        """The slot of a row of the cache tensor."""
        block, offset = divmod(row, allocator.block_physical_stride)
        return int(block * allocator.tokens_per_page + offset)

    def _write_rows(self, future: Any) -> Iterable[tuple[int, int]]:
        """The rows to which the engine writes, by slot: where these are told by its read indices, they may differ."""
        rid, past, n = future.state.request_id, future.state.position_offset, future.query_length
        for g, allocator in enumerate(self._allocators):
            slots = self.slots(rid, g)[past : past + n]
            rows = allocator.get_write_indices(rid, past, n)
            yield from ((slot, row) for slot, row in zip(slots, rows, strict=True) if slot is not None)


class SharedMemory:
    """KV memory on the cache tensor of all allocators. Each row is moved by the allocator that has its block."""

    def __init__(self, cache: Any, page: int) -> None:
        self._allocators = list(cache.cache_allocators.values())
        self._memories = [CacheMemory(cache, allocator) for allocator in self._allocators]
        self._page = page

    def begin_forward(self, write_rows: dict[int, int]) -> None:
        """`write_rows` are the rows to which the engine writes the tokens of these slots in the coming forward."""
        for memory in self._memories:
            memory.begin_forward(write_rows)

    def write(self, slots: Sequence[int], stamps: Sequence[int]) -> None:
        """Stores stamps[i] in every plane of slots[i]."""
        for memory, places in self._by_owner(slots):
            memory.write([slots[i] for i in places], [stamps[i] for i in places])

    def read(self, slots: Sequence[int]) -> list[int]:
        """The stamps in these slots; TORN where the planes disagree."""
        found: dict[int, int] = {}
        for memory, places in self._by_owner(slots):
            found.update(zip(places, memory.read([slots[i] for i in places]), strict=True))
        return [found[i] for i in range(len(slots))]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, given as all their slot pairs."""
        for memory, places in self._by_owner([source for source, _ in pairs]):
            memory.copy([pairs[i] for i in places])

    def poison(self, slots: Sequence[int]) -> None:
        """Marks freed slots with the stamp -1."""
        self._memories[0].poison(slots)

    def _by_owner(self, slots: Sequence[int]) -> Iterable[tuple[CacheMemory, list[int]]]:
        """The memories with the places of their slots in the sequence. What nobody has any more is the first one's."""
        owner = {
            block: g
            for g, allocator in enumerate(self._allocators)
            for table in allocator.block_table.values()
            for block in table
        }
        places: dict[int, list[int]] = {}
        for i, slot in enumerate(slots):
            places.setdefault(owner.get(slot // self._page, 0), []).append(i)
        return [(self._memories[g], of_memory) for g, of_memory in places.items()]


def _group(allocator: Any) -> Group:
    """The group of an allocator, whose blocks are sectors."""
    size = allocator.blocks_per_sector * allocator.tokens_per_page
    if allocator.layer_type == FULL_ATTENTION:
        return Group("full", size)
    return Group("rolling", size, reach=allocator.sliding_window)


@lru_cache
def _config(layers: tuple[str, ...], window: int, heads: int, head_dim: int) -> Any:
    shape: dict[str, Any] = {
        "num_hidden_layers": len(layers),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head_dim,
        "hidden_size": heads * head_dim,
        "intermediate_size": 1,
        "vocab_size": 3,
        "sliding_window": window,
    }
    # The engine takes all layers of a model without types of layers for sliding ones.
    return GptOssConfig(**shape, layer_types=list(layers)) if FULL_ATTENTION in layers else MistralConfig(**shape)


def make_window(blocks: int, block_size: int) -> TransformersWindowManager:
    """Full attention and a window of 3 positions, in as many layers each, on the engine's tensor."""
    return TransformersWindowManager(blocks, block_size, EVEN, 3, tensors=True)


def make_window_wide(blocks: int, block_size: int) -> TransformersWindowManager:
    """Full attention and a window of 9 positions, in as many layers each."""
    return TransformersWindowManager(blocks, block_size, EVEN, 9)


def make_window_alone(blocks: int, block_size: int) -> TransformersWindowManager:
    """A window of 4 positions and nothing else."""
    return TransformersWindowManager(blocks, block_size, ALONE, 4)


def make_window_packed(blocks: int, block_size: int) -> TransformersWindowManager:
    """Full attention in two layers and a window of 5 positions in three, so that requests share sectors."""
    return TransformersWindowManager(blocks, block_size, PACKED, 5)
