"""kv_manager on the paged cache of continuous batching in the `transformers` package (5.20 and later), on CPU.

Calls come in the order of the engine's own scheduler and update: a prefix is matched once, when a pending request is
admitted; under pressure everything cached is evicted before anyone is refused; positions advance when the batch is
launched; full blocks are hashed and de-duplicated after the forward. Preemption is the engine's soft reset.
Source: transformers/generation/continuous_batching, scheduler.py, continuous_api.py and offloading_manager.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from math import gcd
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from kvlockstep.impl.slots import slots_of

try:
    import torch
    import transformers
    from transformers import ContinuousBatchingConfig, LlamaConfig
    from transformers.generation.continuous_batching.cache import PagedAttentionCache, PagedAttentionMemoryHandler
    from transformers.generation.continuous_batching.cache_allocators import FULL_ATTENTION
    from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState, RequestStatus
    from transformers.generation.continuous_batching.utils import logger
except ImportError as error:
    raise ImportError(
        f"the transformers target needs torch and transformers >= 5.20 with continuous batching ({error}); "
        "get it with: pip install 'kvlockstep[engines]'"
    ) from error

TORN = -2
NO_ROWS = torch.empty(0, dtype=torch.int64)
SECTOR_ALIGNMENT = 128


class TransformersKVManager:
    """One full-attention paged cache. With `tensors`, `memory` is the engine's own KV tensor, in int64.

    Without, the tensor is as small as the engine allows, for large pools, and `memory` is None. `total` counts
    the data sectors; the two trash sectors in front of them belong to nobody, so block ids start above 0.
    """

    engine = "transformers"
    version = transformers.__version__
    chunk = True
    tokens_per_decode = 1
    can_fork = can_reset = can_evict_all = True
    hash_trust = "none"

    def __init__(self, blocks: int, block_size: int, tensors: bool = True) -> None:
        self._cache = _cache(blocks, block_size, tensors)
        self._allocator = self._cache.cache_allocators[FULL_ATTENTION]
        self._pool = self._cache.pool
        self.block_size = block_size
        self.total = self._cache.num_blocks * block_size
        self._kv = self.memory = CacheMemory(self._cache, self._allocator) if tensors else None
        self._forget_requests()

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        state = self._requeued.get(rid) or RequestState(rid, list(tokens), max_new_tokens=None)
        hit: int = self._cache.search_prefix_match(rid, state.initial_tokens)
        state.position_offset = hit
        if not self._schedule(state, min(n, len(state.initial_tokens) - hit)):
            # The engine's scheduler lets a request without room keep its prefix; the contract has it hold nothing.
            self._cache.free_blocks(rid)
            return None
        self._requeued.pop(rid, None)
        self._active[rid] = state
        return hit

    def append(self, rid: str, token: int) -> None:
        self._active[rid].update_and_check_completion(token, None)

    def reserve(self, rid: str, n: int) -> bool:
        return self._schedule(self._active[rid], n)

    def copies(self) -> list[tuple[int, int]]:
        return []

    def launch(self) -> None:
        if self._kv is not None:
            self._kv.begin_forward(dict(pair for future in self._batch.values() for pair in self._write_rows(future)))
        for future in self._batch.values():
            future.state.position_offset += future.query_length
        self._scheduling = False

    def slots(self, rid: str) -> list[int]:
        size, stride = self.block_size, self._allocator.block_physical_stride
        length = len(self._allocator.block_table[rid]) * size
        return [i // stride * size + i % stride for i in self._allocator.get_read_indices(rid, 0, length)]

    def blocks(self, rid: str) -> list[int]:
        """The block table: block i holds positions [i * block_size, (i + 1) * block_size)."""
        return list(self._allocator.block_table[rid])

    def commit(self, rid: str, n: int) -> None:
        future = self._batch.pop(rid)
        self._cache.mark_complete_blocks(future.state, future.complete_blocks)

    def finish(self, rid: str) -> None:
        del self._active[rid]
        self._batch.pop(rid, None)
        self._cache.free_blocks(rid)

    def abort(self, rid: str) -> None:
        self.finish(rid)

    def preempt(self, rid: str) -> None:
        self._requeued[rid] = self._active.pop(rid).create_equivalent_initial_request()
        self._cache.free_blocks(rid, no_cache=True)

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        parent = self._active[rid]
        due: dict[str, tuple[list[int], list[int]]] = {FULL_ATTENTION: ([], [])}
        self._pool.try_to_free_sectors()
        if not self._cache.prepare_fork_request(parent, [child], due):
            return None
        self._active[child] = parent.fork(child)
        size = self.block_size
        return [(s * size + i, t * size + i) for s, t in zip(*due[FULL_ATTENTION], strict=True) for i in range(size)]

    def evict_all(self) -> None:
        self._cache.evict_cached_blocks()

    def reset(self) -> None:
        self._cache.reset()
        self._forget_requests()

    def avail(self) -> int:
        return self.free_now() + len(self._allocator.ledger.cached_blocks) * self.block_size

    def free_now(self) -> int:
        blocks: int = self._pool.num_free_sectors * self._allocator.blocks_per_sector
        blocks += self._pool.count_free_blocks(self._allocator.index)
        return blocks * self.block_size

    def free_slots(self) -> Iterable[int] | None:
        return slots_of(self.free_blocks(), self.block_size)

    def free_blocks(self) -> list[int]:
        """The blocks that are free and not cached; a sector is one block, see `_cache`."""
        trees = self._pool._free_blocks[self._allocator.index].trees
        return [*chain.from_iterable(trees.values()), *self._pool.free_sectors]

    def _write_rows(self, future: Any) -> Iterable[tuple[int, int]]:
        rid, past, n = future.state.request_id, future.state.position_offset, future.query_length
        return zip(self.slots(rid)[past : past + n], self._allocator.get_write_indices(rid, past, n), strict=True)

    def _forget_requests(self) -> None:
        self._active: dict[str, Any] = {}
        self._requeued: dict[str, Any] = {}
        self._batch: dict[str, Any] = {}
        self._scheduling = False

    def _schedule(self, state: Any, n: int) -> bool:
        """Takes the cache for the next `n` tokens; if it is short, evicts and tries once more, as the engine does."""
        if not self._batch:
            self._pool.try_to_free_sectors()
        self._scheduling = True
        fits = self._cache.can_store_request_tokens(state, n)
        if not fits and self._cache.evict_cached_blocks():
            self._pool.try_to_free_sectors()
            fits = self._cache.can_store_request_tokens(state, n)
        if fits:
            prefilled = state.position_offset + n >= len(state.initial_tokens)
            state.status = RequestStatus.DECODING if prefilled else RequestStatus.PREFILLING
            complete = self._cache.count_new_complete_blocks(state, n)
            self._batch[state.request_id] = FutureRequestState(state, prefilled, complete, n)
        return bool(fits)


class CacheMemory:
    """KV memory on the engine's cache tensor, moved by the engine's own code: that of one of its allocators.

    Every number of a token, in K and V of every layer, head and dimension, is the stamp times another odd factor: a
    read returns the stamp if all of them agree, else TORN. Zeroed memory reads as stamp 0.
    """

    def __init__(self, cache: Any, allocator: Any) -> None:
        self._cache = cache
        self._allocator = allocator
        shape = (len(self._allocator.layer_indices), 2, self._allocator.num_key_value_heads, self._allocator.head_dim)
        self._factors = 2 * torch.arange(torch.Size(shape).numel()).view(shape) + 1
        self._page: int = self._allocator.tokens_per_page
        self._stride: int = self._allocator.block_physical_stride
        self._write_rows: dict[int, int] = {}

    def begin_forward(self, write_rows: dict[int, int]) -> None:
        """`write_rows` are the rows to which the engine writes the tokens of these slots in the coming forward."""
        self._write_rows = write_rows

    def write(self, slots: Sequence[int], stamps: Sequence[int]) -> None:
        """Stores stamps[i] in every plane of slots[i]."""
        if slots:
            rows = [self._write_rows.get(slot, self._row(slot)) for slot in slots]
            self._update(torch.tensor(stamps), torch.tensor(rows), NO_ROWS)

    def read(self, slots: Sequence[int]) -> list[int]:
        """The stamps in these slots; TORN where the planes disagree."""
        if not slots:
            return []
        got = self._update(NO_ROWS, NO_ROWS, torch.tensor([self._row(slot) for slot in slots]))
        planes = torch.stack([torch.stack(pair) for pair in got])
        stamps = planes[0, 0, :, 0, 0]
        agree = (planes == self._planes(stamps)).movedim(2, 0).flatten(1).all(1)
        answer: list[int] = torch.where(agree, stamps, TORN).tolist()
        return answer

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, given as all their slot pairs."""
        size = self._page
        blocks = list(dict.fromkeys((source // size, target // size) for source, target in pairs))
        if sorted(pairs) != sorted((s * size + i, t * size + i) for s, t in blocks for i in range(size)):
            raise ValueError(f"the engine copies whole blocks, not slots {list(pairs)}")
        self._cache.perform_cache_copy({self._allocator.layer_type: ([s for s, _ in blocks], [t for _, t in blocks])})

    def poison(self, slots: Sequence[int]) -> None:
        """Marks freed slots with the stamp -1."""
        self.write(slots, [-1] * len(slots))

    def _update(self, stamps: Any, write_rows: Any, read_rows: Any) -> list[tuple[Any, Any]]:
        """Updates the cache of one forward in every layer; returns K and V at `read_rows`."""
        planes = self._planes(stamps)
        return [
            self._allocator.update(planes[i, 0], planes[i, 1], layer, read_rows, write_rows)
            for i, layer in enumerate(self._allocator.layer_indices)
        ]

    def _planes(self, stamps: Any) -> Any:
        """The values of these stamps in the cache: [layers, K and V, tokens, heads, head_dim], int64."""
        return stamps[:, None, None] * self._factors[:, :, None]

    def _row(self, slot: int) -> int:
        block, offset = divmod(slot, self._page)
        return block * self._stride + offset


def make(blocks: int, block_size: int, tensors: bool = True) -> TransformersKVManager:
    """A new paged cache of `blocks` blocks of `block_size` tokens, on CPU."""
    return TransformersKVManager(blocks, block_size, tensors)


def _cache(blocks: int, block_size: int, tensors: bool) -> Any:
    """The engine's cache, its heads so wide that a sector is one block and `total` exactly what was asked for."""
    layers, heads, dtype = (2, 2, torch.int64) if tensors else (1, 1, torch.uint8)
    head_dim = aligned_head_dim(layers, heads, dtype, block_size)
    return cache_of(_config(layers, heads, head_dim), blocks, block_size, dtype)


def aligned_head_dim(layers: int, heads: int, dtype: Any, block_size: int) -> int:
    """The smallest width of a head with which a block of these layers fills whole units of the engine's alignment."""
    return SECTOR_ALIGNMENT // gcd(2 * layers * heads * dtype.itemsize * block_size, SECTOR_ALIGNMENT)


def cache_of(config: Any, blocks: int, block_size: int, dtype: Any) -> Any:
    """The engine's cache of a model, with `blocks` blocks of all its layers, on CPU."""
    sizes = ContinuousBatchingConfig(page_size=block_size, num_blocks=blocks, max_batch_tokens=1)
    one_process: Any = SimpleNamespace(tp_size=1)
    with sized_by_caller():
        return PagedAttentionCache(config, sizes, "cpu", one_process, dtype)


@lru_cache
def _config(layers: int, heads: int, head_dim: int) -> Any:
    return LlamaConfig(
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=head_dim,
        hidden_size=heads * head_dim,
        intermediate_size=1,
        vocab_size=3,
    )


@contextmanager
def sized_by_caller() -> Iterator[None]:
    """The number of blocks is given, so nobody needs to ask the machine how much memory it has, and report on it."""
    with (
        patch.object(PagedAttentionMemoryHandler, "get_available_memory", lambda _: 2**62),
        patch.object(logger, "disabled", True),
    ):
        yield
