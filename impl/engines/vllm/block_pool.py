"""block_pool on vLLM's BlockPool and free queue, with the lookup of its full attention.

Of `block_pool` the pool has the order of eviction, the references and the hits. It trusts its hashes, so the hash
function of a scope, which may be weak, is not used: the engine's own SHA-256 is. It checks nothing that it is given, so
those errors are raised here; its scheduler makes no such call. A request's table is freed last block first, as
SingleTypeKVCacheManager.free does. A reset leaves the free queue as it is: blocks are numbered again, along the queue.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from kvlockstep.impl.block_pool.keys import packed
from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.reference.block_pool.contract import AlreadyCached, ExtraKey, HashFunction, InUse, Prefix
from kvlockstep.reference.errors import InvalidArgument, NotCached, NotHeld, OutOfSlots, UnknownSlot

GROUP = 0


class VllmKeys:
    """The hashes of a request's full blocks. `prefixes` has what each hash of the pool stands for."""

    def __init__(self, block_size: int, extra_keys: Sequence[ExtraKey], prefixes: dict[Any, Prefix]) -> None:
        self._size = block_size
        self._extra_keys = tuple(extra_keys)
        self._prefixes = prefixes
        self._tokens = array("i")
        self.hashes: list[Any] = []

    def __len__(self) -> int:
        return len(self.hashes)

    def extend(self, tokens: Sequence[int]) -> None:
        """More tokens are known. Raises InvalidArgument if one is not an integer of 32 bits."""
        self._tokens.frombytes(packed(tokens))
        for block in range(len(self), len(self._tokens) // self._size):
            end = (block + 1) * self._size
            extra_keys = (self._extra_keys + (None,) * (block + 1))[: block + 1]
            parent = self.hashes[-1] if self.hashes else None
            own = self._tokens[block * self._size : end].tolist()
            own_key = None if extra_keys[-1] is None else (extra_keys[-1],)
            self.hashes.append(vllm.utils.hash_block_tokens(vllm.HASH, parent, own, own_key))
            self._prefixes[self.hashes[-1]] = Prefix(extra_keys, tuple(self._tokens[:end]))


class VllmBlockPool:
    """Block b is the b-th block of the pool without its null block, until a reset."""

    engine = "vllm"
    version = vllm.ENGINE.version

    def __init__(self, blocks: int, block_size: int, hash_function: HashFunction | None = None) -> None:
        if blocks < 0 or block_size < 1:
            raise InvalidArgument(f"blocks={blocks}, block_size={block_size}: at least 0 and 1")
        self._size = block_size
        self._spec = vllm.cache_config(blocks, block_size).kv_cache_groups[GROUP].kv_cache_spec
        self._pool = vllm.pool.BlockPool(blocks + 1, enable_caching=True, hash_block_size=block_size)
        self._prefixes: dict[Any, Prefix] = {}
        self._number()

    @property
    def num_free(self) -> int:
        return int(self._pool.get_num_free_blocks())

    @property
    def num_evictable(self) -> int:
        return sum(block.block_hash is not None for block in self._pool.free_block_queue.get_all_free_blocks())

    @property
    def usage(self) -> float:
        return float(self._pool.get_usage())

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> VllmKeys:
        return VllmKeys(self._size, extra_keys, self._prefixes)

    def allocate(self, n: int) -> list[int]:
        if n < 0:
            raise InvalidArgument(f"allocate: n={n} is negative")
        if n > self.num_free:
            raise OutOfSlots(f"allocate: n={n}, {self.num_free} blocks are free")
        return [self._number_of[block.block_id] for block in self._pool.get_new_blocks(n)]

    def touch(self, blocks: Sequence[int]) -> None:
        self._pool.touch(self._named(blocks, self._check_worth_holding))

    def free(self, blocks: Sequence[int]) -> None:
        self._pool.free_blocks(reversed(self._named(blocks, self._check_held)))

    def cache_full_blocks(self, keys: VllmKeys, table: Sequence[int], cached: int, full: int) -> None:
        if not 0 <= cached <= full <= min(len(table), len(keys)):
            raise InvalidArgument(f"cache_full_blocks: {cached=}, {full=}, {len(table)} blocks, {len(keys)} keys")
        if cached:
            (parent,) = self._named(table[cached - 1 : cached])
            if parent.block_hash is None or vllm.utils.get_block_hash(parent.block_hash) != keys.hashes[cached - 1]:
                raise NotCached(f"block {table[cached - 1]} does not cache the request up to there")
        new = self._named(table[cached:full], self._check_cacheable)
        request = SimpleNamespace(block_hashes=keys.hashes)
        self._pool.cache_full_blocks(request, [None] * cached + new, cached, full, self._size, GROUP)

    def find_longest_prefix(self, keys: VllmKeys, limit: int | None = None) -> list[int]:
        if limit is not None and limit < 0:
            raise InvalidArgument(f"find_longest_prefix: limit={limit} is negative")
        most = len(keys) if limit is None else min(limit, len(keys))
        (hits,), _ = vllm.single_type.FullAttentionManager.find_longest_cache_hit(
            block_hashes=keys.hashes,
            max_length=most * self._size,
            kv_cache_group_ids=[GROUP],
            block_pool=self._pool,
            kv_cache_spec=self._spec,
            drop_eagle_block=False,
            alignment_tokens=self._size,
        )
        return [self._number_of[block.block_id] for block in hits]

    def reset(self) -> None:
        if not self._pool.reset_prefix_cache():
            raise InUse(f"reset: {len(self._blocks) - self.num_free} blocks are held")
        self._number()

    def free_queue(self) -> list[int]:
        return [self._number_of[block.block_id] for block in self._pool.free_block_queue.get_all_free_blocks()]

    def ref_count(self, block: int) -> int:
        return int(self._named([block])[0].ref_cnt)

    def entries(self) -> dict[Prefix, list[int]]:
        found: dict[Prefix, list[int]] = {}
        for key, blocks in self._pool.cached_block_hash_to_block._cache.items():
            ids = blocks if isinstance(blocks, dict) else [blocks.block_id]
            found[self._prefixes[vllm.utils.get_block_hash(key)]] = [self._number_of[id_] for id_ in ids]
        return found

    def _number(self) -> None:
        self._blocks = self._pool.free_block_queue.get_all_free_blocks()
        self._number_of = {block.block_id: number for number, block in enumerate(self._blocks)}

    def _named(self, numbers: Sequence[int], check: Callable[[int, Any], None] = lambda *_: None) -> list[Any]:
        """The pool's blocks of these numbers, each checked."""
        for i, number in enumerate(numbers):
            if not 0 <= number < len(self._blocks):
                raise UnknownSlot(f"block {number} is not one of 0..{len(self._blocks) - 1}")
            if number in numbers[:i]:
                raise InvalidArgument(f"block {number} is named twice")
            check(number, self._blocks[number])
        return [self._blocks[number] for number in numbers]

    def _check_worth_holding(self, number: int, block: Any) -> None:
        if not block.ref_cnt and block.block_hash is None:
            raise NotCached(f"block {number} is free and caches nothing")

    def _check_held(self, number: int, block: Any) -> None:
        if not block.ref_cnt:
            raise NotHeld(f"block {number} is free")

    def _check_cacheable(self, number: int, block: Any) -> None:
        self._check_held(number, block)
        if block.block_hash is not None:
            raise AlreadyCached(f"block {number} is cached")
