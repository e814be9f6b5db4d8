"""kv_manager with groups on the hybrid KV cache manager of vLLM's v1 engine (0.33.0): full, window, chunked attention.

The calls are those of the adapter with one group (manager.py). All groups take their blocks from one pool. A window
slides when slots are allocated for its request, before room is looked for: a refused reservation may have freed blocks.
A table keeps its length, with the null block, which is block 0, where a position has slid off.
Source: vllm/v1/core/kv_cache_coordinator.py and single_type_kv_cache_manager.py, beside those of manager.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.impl.engines.vllm.manager import MAX_MODEL_LEN, VllmKVManager
from kvlockstep.reference.kv_manager.groups.contract import Group

NULL = 0


class VllmHybridManager(VllmKVManager):
    """One KVCacheManager with `groups`; `blocks` for each group, in one pool.

    `retention` is how the cache keeps checkpoints of windows and states: None all, 0 the ends of prompts, else one in
    so many tokens. With `eagle` the last block of a hit is computed again. `hash_size` are the tokens of a hash.

    A `listener` can predict every hit if all groups have one block size, none skips a block, and there is no EAGLE
    head. With several sizes the engine also makes hits that end within a block, and announces them by their hash.
    """

    copies_at_admit = copies_at_reserve = False

    def __init__(
        self,
        blocks: int,
        block_size: int,
        groups: tuple[Group, ...],
        retention: int | None = None,
        eagle: bool = False,
        hash_size: int | None = None,
        listener: str | None = None,
    ) -> None:
        self.groups = groups
        self.block_size = groups[0].block_size
        total = blocks * len(groups)
        self.total = total * self.block_size
        self.prefix_cache = self.can_evict_all = True
        self.event_listener = listener
        sizes = [group.block_size for group in groups]
        config = cache_config(total, [self.spec(group) for group in groups], retention)
        self.hash_size = hash_size or math.gcd(*sizes)
        self._manager = vllm.manager.KVCacheManager(
            config,
            max_model_len=MAX_MODEL_LEN,
            scheduler_block_size=math.lcm(*sizes),
            hash_block_size=self.hash_size,
            enable_caching=True,
            enable_kv_cache_events=listener is not None,
            use_eagle=eagle,
        )
        self._pool = self._manager.block_pool
        self._hasher = vllm.block_hasher(self.hash_size)
        self._adapters = False
        self._forget_requests()

    def spec(self, group: Group) -> Any:
        """The engine's own description of a group."""
        return attention_spec(group)

    def copies(self) -> list[tuple[int, int]]:
        copies, retained = self._manager.take_kv_cache_block_copies()
        self._pool.free_blocks(retained)
        return [(c.src_block_id, c.dst_block_id) for c in copies]

    def slots(self, rid: str, group: int = 0) -> list[int | None]:  # type: ignore[override]
        size, table = self.groups[group].block_size, self._manager.get_block_ids(rid)[group]
        return [None if block == NULL else block * size + i for block in table for i in range(size)]

    def held(self, rid: str, group: int) -> list[int]:
        """The blocks of the table: each has a reference of the request."""
        return [block for block in self._manager.get_block_ids(rid)[group] if block != NULL]

    def avail(self) -> int:
        return int(self._pool.get_num_free_blocks())

    def free_now(self) -> int:
        return len(self.free_blocks())

    def free_slots(self) -> Iterable[int] | None:
        return self.free_blocks()


def attention_spec(group: Group) -> Any:
    """The engine's own description of a group of attention layers. Raises ValueError for a state."""
    shape: dict[str, Any] = {"block_size": group.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
    match group.kind:
        case "full":
            return vllm.interface.FullAttentionSpec(**shape)
        case "window":
            return vllm.interface.SlidingWindowSpec(**shape, sliding_window=group.reach)
        case "chunked":
            return vllm.interface.ChunkedLocalAttentionSpec(**shape, attention_chunk_size=group.reach)
    raise ValueError(f"no attention group: {group}")


def cache_config(blocks: int, specs: list[Any], retention: int | None) -> Any:
    """A pool of `blocks` for groups of these descriptions, beside the null block."""
    groups = [vllm.interface.KVCacheGroupSpec([f"layer {g}"], spec) for g, spec in enumerate(specs)]
    config = vllm.interface.KVCacheConfig(blocks + 1, [], groups)
    config.prefix_cache_retention_interval = retention
    return config


def make_window(blocks: int, block_size: int) -> VllmHybridManager:
    """Full attention and a window of 3 positions."""
    groups = Group("full", block_size), Group("window", block_size, reach=3)
    return VllmHybridManager(blocks, block_size, groups, listener="counting")


def make_windows(blocks: int, block_size: int) -> VllmHybridManager:
    """Full attention with two windows, one of a block and one position more, one of 5 positions."""
    groups = (
        Group("full", block_size),
        Group("window", block_size, reach=block_size + 1),
        Group("window", block_size, reach=5),
    )
    return VllmHybridManager(blocks, block_size, groups, listener="counting")


def make_window_alone(blocks: int, block_size: int) -> VllmHybridManager:
    """A window of 4 positions and nothing else."""
    return VllmHybridManager(blocks, block_size, (Group("window", block_size, reach=4),), listener="counting")


def make_chunked(blocks: int, block_size: int) -> VllmHybridManager:
    """Full attention and chunks of two blocks."""
    groups = Group("full", block_size), Group("chunked", block_size, reach=2 * block_size)
    return VllmHybridManager(blocks, block_size, groups, listener="counting")


def make_two_sizes(blocks: int, block_size: int) -> VllmHybridManager:
    """Full attention, and a window of 5 positions in blocks of half the size."""
    groups = Group("full", 2 * block_size), Group("window", block_size, reach=5)
    return VllmHybridManager(blocks, block_size, groups)


def make_sparse(blocks: int, block_size: int) -> VllmHybridManager:
    """Full attention and a window of 3 positions, of which the cache keeps checkpoints only."""
    groups = Group("full", block_size), Group("window", block_size, reach=3)
    return VllmHybridManager(blocks, block_size, groups, retention=0)


def make_retained(blocks: int, block_size: int) -> VllmHybridManager:
    """Full attention and a window of 3 positions, of which the cache keeps a checkpoint every three blocks."""
    groups = Group("full", block_size), Group("window", block_size, reach=3)
    return VllmHybridManager(blocks, block_size, groups, retention=3 * block_size)


def make_eagle(blocks: int, block_size: int) -> VllmHybridManager:
    """Full attention and a window of 5 positions, with an EAGLE head."""
    groups = Group("full", block_size), Group("window", block_size, reach=5)
    return VllmHybridManager(blocks, block_size, groups, eagle=True)
