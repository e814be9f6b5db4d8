"""kv_manager on a BlockPool: prefix sharing by chained block keys, copy-on-write, preemption."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvlockstep.impl.block_pool import BlockPool
from kvlockstep.impl.block_pool.keys import NamedHash, RequestKeys
from kvlockstep.impl.kv_manager.tables import TableManager, TableRequest
from kvlockstep.reference.block_pool.contract import HashFunction


class Request(TableRequest):
    """A live request: its keys, and a block table of which the first `published` blocks are cached."""

    __slots__ = ("keys", "published")

    def __init__(self, keys: RequestKeys, table: list[int], computed: int, published: int) -> None:
        super().__init__(table, computed)
        self.keys = keys
        self.published = published


class PoolManager(TableManager[Request]):
    """`blocks` blocks of `block_size` slots. Meets KVManagerTarget with every optional method.

    Trick: the BlockPool keeps keys, holders and the free queue, at one key lookup per block.

    A block is cached once all its tokens are computed, even if another block caches the same. With `tensors` the KV
    lies in `memory`, a KVTensors on `device`.
    """

    _copy_at = -1

    def __init__(
        self,
        blocks: int,
        block_size: int,
        *,
        hash_function: HashFunction | NamedHash | None = None,
        tensors: bool = False,
        device: str = "cpu",
    ) -> None:
        self._make_pool = partial(BlockPool, blocks, block_size, hash_function)
        super().__init__(blocks, block_size, tensors=tensors, device=device)

    def reset(self) -> None:
        """Ends every request and forgets everything cached."""
        super().reset()
        self._pool = self._make_pool()

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        """Takes the longest cached prefix that leaves a token to compute, and blocks for `n` tokens more."""
        keys = self._pool.request_keys((extra_key,))
        keys.extend(tokens)
        hits = self._pool.find_longest_prefix(keys, (len(tokens) - 1) // self.block_size)
        cached = len(hits) * self.block_size
        need = self._blocks_for(min(cached + n, len(tokens))) - len(hits)
        self._pool.touch(hits)
        if need > self._pool.num_free:
            self._pool.free(hits)
            return None
        self._live[rid] = Request(keys, hits + self._pool.allocate(need), cached, len(hits))
        return cached

    def append(self, rid: str, token: int) -> None:
        """One more token is known."""
        self._live[rid].keys.append(token)

    def commit(self, rid: str, n: int) -> None:
        """`n` tokens more are computed; the blocks that they complete are cached."""
        request = self._live[rid]
        request.computed += n
        request.kept = len(request.table)
        full = request.computed // self.block_size
        if full > request.published:
            self._pool.cache_full_blocks(request.keys, request.table, request.published, full)
            request.published = full

    def evict_all(self) -> None:
        """Drops everything cached in blocks that no request holds."""
        self._pool.free(self._pool.allocate(self._pool.num_free))

    def avail(self) -> int:
        """Slots of free blocks, with something cached in them or not."""
        return self._pool.num_free * self.block_size

    def free_now(self) -> int:
        """Slots of free blocks with nothing cached in them."""
        return (self._pool.num_free - self._pool.num_evictable) * self.block_size

    def free_blocks(self) -> list[int]:
        """The free blocks with nothing cached in them."""
        return self._pool.free_queue()[: self._pool.num_free - self._pool.num_evictable]

    def _child_of(self, parent: Request, table: list[int]) -> Request:
        return Request(parent.keys.copy(), table, parent.computed, parent.published)

    def _free_count(self) -> int:
        return self._pool.num_free

    def _is_shared(self, block: int) -> bool:
        return self._pool.ref_count(block) > 1

    def _take(self, n: int) -> list[int]:
        return self._pool.allocate(n)

    def _hold(self, block: int) -> None:
        self._pool.touch((block,))

    def _release(self, blocks: Sequence[int]) -> None:
        self._pool.free(blocks)
