"""kv_manager on a BlockPool: prefix sharing by chained block keys, copy-on-write, preemption."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from kvlockstep.impl.block_pool import BlockPool
from kvlockstep.impl.block_pool.keys import RequestKeys
from kvlockstep.impl.kv_manager.tensors import KVTensors
from kvlockstep.impl.slots import slots_of
from kvlockstep.reference.block_pool.contract import HashFunction


class DueCopy(NamedTuple):
    """A copy-on-write that waits for the forward: block `at` of the table of `rid` comes from `source`."""

    rid: str
    at: int
    source: int


class Request:
    """A live request: its keys, its block table, of which `published` blocks are cached, and the tokens `computed`.

    `kept` is the length of the table before this step's reservation, 0 in the step that admits it.
    """

    __slots__ = ("computed", "kept", "keys", "published", "table")

    def __init__(self, keys: RequestKeys, table: list[int], computed: int, published: int) -> None:
        self.keys = keys
        self.table = table
        self.computed = computed
        self.published = published
        self.kept = 0


class PoolManager:
    """`blocks` blocks of `block_size` slots. Meets reference.contracts.KVManagerTarget with every optional method.

    A block is cached once all its tokens are computed, even if another block caches the same. With `tensors` the KV
    lies in `memory`, a KVTensors on `device`.
    """

    chunk = extra_key = copies_at_reserve = True
    can_withdraw = can_fork = can_reset = can_evict_all = True
    hash_trust = "tokens+parent"

    def __init__(
        self,
        blocks: int,
        block_size: int,
        *,
        hash_function: HashFunction | None = None,
        tensors: bool = False,
        device: str = "cpu",
    ) -> None:
        self.block_size = block_size
        self.total = blocks * block_size
        self.memory = KVTensors(self.total, device=device) if tensors else None
        self._make_pool = partial(BlockPool, blocks, block_size, hash_function)
        self.reset()

    def reset(self) -> None:
        """Ends every request and forgets everything cached."""
        self._pool = self._make_pool()
        self._due: list[DueCopy] = []
        self._live: dict[str, Request] = {}

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

    def reserve(self, rid: str, n: int) -> bool:
        """Blocks for the next `n` tokens; a shared block that they start in is copied first."""
        request = self._live[rid]
        table = request.table
        index = request.computed // self.block_size
        shared = index < len(table) and self._pool.ref_count(table[index]) > 1
        need = max(0, self._blocks_for(request.computed + n) - len(table)) + shared
        if need and need > self._pool.num_free:
            return False
        request.kept = len(table)
        if need:
            new = self._pool.allocate(need)
            if shared:
                self._due.append(DueCopy(rid, index, table[index]))
                table[index] = new.pop()
            table += new
        return True

    def copies(self) -> list[tuple[int, int]]:
        """The slot copies of this step's copy-on-writes."""
        size = self.block_size
        pairs = [(due.source, self._live[due.rid].table[due.at]) for due in self._due]
        return list(zip(slots_of((s for s, _ in pairs), size), slots_of((t for _, t in pairs), size), strict=True))

    def launch(self) -> None:
        """The copies have run: their sources may go."""
        for due in self._due:
            self._pool.free((due.source,))
        self._due.clear()

    def slots(self, rid: str) -> list[int]:
        """The slots of the request's blocks, in order."""
        return slots_of(self._live[rid].table, self.block_size)

    def blocks(self, rid: str) -> list[int]:
        """The request's block table."""
        return self._live[rid].table.copy()

    def commit(self, rid: str, n: int) -> None:
        """`n` tokens more are computed; the blocks that they complete are cached."""
        request = self._live[rid]
        request.computed += n
        request.kept = len(request.table)
        full = request.computed // self.block_size
        if full > request.published:
            self._pool.cache_full_blocks(request.keys, request.table, request.published, full)
            request.published = full

    def finish(self, rid: str) -> None:
        """Gives the request's blocks back; what is cached stays until its block is needed, the last first."""
        self._pool.free(self._live.pop(rid).table)

    def abort(self, rid: str) -> None:
        """Gives the request's blocks back; only what was committed stays cached."""
        self.finish(rid)

    def preempt(self, rid: str) -> None:
        """Gives the request's blocks back; what it computed may still be there when it returns."""
        self.finish(rid)

    def withdraw(self, rid: str) -> None:
        """Takes back the request's admission or reservation of this step."""
        request = self._live[rid]
        for due in [due for due in self._due if due.rid == rid]:
            self._pool.free((request.table[due.at],))
            request.table[due.at] = due.source
            self._due.remove(due)
        self._pool.free(request.table[request.kept :])
        del request.table[request.kept :]
        if not request.kept:
            del self._live[rid]

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        """The child shares every block that its parent has computed into; nothing is copied now."""
        parent = self._live[rid]
        table = parent.table[: self._blocks_for(parent.computed)]
        self._pool.touch(table)
        request = Request(parent.keys.copy(), table, parent.computed, parent.published)
        request.kept = len(table)
        self._live[child] = request
        return []

    def evict_all(self) -> None:
        """Drops everything cached in blocks that no request holds."""
        self._pool.free(self._pool.allocate(self._pool.num_free))

    def avail(self) -> int:
        """Slots of free blocks, with something cached in them or not."""
        return self._pool.num_free * self.block_size

    def free_now(self) -> int:
        """Slots of free blocks with nothing cached in them."""
        return (self._pool.num_free - self._pool.num_evictable) * self.block_size

    def free_slots(self) -> Iterable[int] | None:
        """The slots of the blocks that `free_now` counts."""
        return slots_of(self.free_blocks(), self.block_size)

    def free_blocks(self) -> list[int]:
        """The free blocks with nothing cached in them."""
        return self._pool.free_queue()[: self._pool.num_free - self._pool.num_evictable]

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
