"""kv_manager: the simplest block manager with prefix caching that keeps every rule of the request-level contract.

Blocks are shared by reference count. A full block of computed tokens is published under the whole sequence
up to its end, so a hit cannot be wrong; a block that only the cache names is evicted least recently used first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvlockstep.reference.kv.shape import blocks_for

Key = tuple[int | None, tuple[int, ...]]


@dataclass
class Request:
    """A live request. `base` is its block table before this step's reservation, None if it was admitted in it."""

    tokens: list[int]
    extra_key: int | None
    table: list[int]
    computed: int
    base: list[int] | None = None


class KVManager:
    """`blocks` blocks of `block_size` slots. Meets reference.contracts.KVManagerTarget with every optional method."""

    chunk = extra_key = copies_at_reserve = True
    can_withdraw = can_fork = can_reset = can_evict_all = True
    hash_trust = "tokens+parent"

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.total = blocks * block_size
        self._blocks = blocks
        self.reset()

    def reset(self) -> None:
        self._free = list(range(self._blocks))
        self._refs = [0] * self._blocks
        self._cached: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}
        self._idle: dict[int, None] = {}
        self._due: list[tuple[str, int, int]] = []
        self._live: dict[str, Request] = {}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        hit = self._lookup(tokens, extra_key)
        end = min(len(hit) * self.block_size + n, len(tokens))
        need = self._blocks_for(end) - len(hit)
        if need > len(self._free) + sum(block not in hit for block in self._idle):
            return None
        for block in hit:
            self._hold(block)
        self._live[rid] = Request(list(tokens), extra_key, hit + self._take(need), len(hit) * self.block_size)
        return len(hit) * self.block_size

    def append(self, rid: str, token: int) -> None:
        self._live[rid].tokens.append(token)

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        first = request.computed // self.block_size
        shared = first < len(request.table) and self._refs[request.table[first]] > 1
        need = max(0, self._blocks_for(request.computed + n) - len(request.table))
        if need + shared > len(self._free) + len(self._idle):
            return False
        request.base = list(request.table)
        if shared:
            source, target = request.table[first], self._take(1)[0]
            self._due.append((rid, source, target))
            request.table[first] = target
        request.table += self._take(need)
        return True

    def copies(self) -> list[tuple[int, int]]:
        size = self.block_size
        return [(s * size + i, t * size + i) for _, s, t in self._due for i in range(size)]

    def launch(self) -> None:
        for _, source, _ in self._due:
            self._drop(source)
        self._due.clear()

    def slots(self, rid: str) -> list[int]:
        return [block * self.block_size + i for block in self._live[rid].table for i in range(self.block_size)]

    def commit(self, rid: str, n: int) -> None:
        request = self._live[rid]
        published = request.computed // self.block_size
        request.computed += n
        request.base = list(request.table)
        for i in range(published, request.computed // self.block_size):
            key = self._key(request.extra_key, request.tokens[: (i + 1) * self.block_size])
            if key not in self._cached:
                self._cached[key] = request.table[i]
                self._key_of[request.table[i]] = key

    def finish(self, rid: str) -> None:
        for block in reversed(self._live.pop(rid).table):
            self._drop(block)

    def abort(self, rid: str) -> None:
        self.finish(rid)

    def preempt(self, rid: str) -> None:
        self.finish(rid)

    def withdraw(self, rid: str) -> None:
        request = self._live[rid]
        for _, source, target in [due for due in self._due if due[0] == rid]:
            request.table[request.table.index(target)] = source
            self._drop(target)
        self._due = [due for due in self._due if due[0] != rid]
        if request.base is None:
            self.finish(rid)
            return
        for block in reversed(request.table[len(request.base) :]):
            self._drop(block)
        request.table = request.base

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        parent = self._live[rid]
        table = parent.table[: self._blocks_for(parent.computed)]
        for block in table:
            self._hold(block)
        self._live[child] = Request(list(parent.tokens), parent.extra_key, table, parent.computed, list(table))
        return []

    def evict_all(self) -> None:
        for block in list(self._idle):
            self._evict(block)

    def avail(self) -> int:
        return (len(self._free) + len(self._idle)) * self.block_size

    def free_now(self) -> int:
        return len(self._free) * self.block_size

    def free_slots(self) -> Iterable[int] | None:
        return [block * self.block_size + i for block in self._free for i in range(self.block_size)]

    def _lookup(self, tokens: list[int], extra_key: int | None) -> list[int]:
        """The blocks of the longest published prefix that leaves at least one token to compute."""
        hit: list[int] = []
        for end in range(self.block_size, len(tokens), self.block_size):
            block = self._cached.get(self._key(extra_key, tokens[:end]))
            if block is None:
                break
            hit.append(block)
        return hit

    def _key(self, extra_key: int | None, tokens: list[int]) -> Key:
        """Key that a full block is published under: everything that its KV depends on."""
        return extra_key, tuple(tokens)

    def _blocks_for(self, tokens: int) -> int:
        return blocks_for(tokens, self.block_size)

    def _take(self, n: int) -> list[int]:
        taken = []
        for _ in range(n):
            if not self._free:
                self._evict(next(iter(self._idle)))
            block = self._free.pop(0)
            self._refs[block] = 1
            taken.append(block)
        return taken

    def _hold(self, block: int) -> None:
        self._idle.pop(block, None)
        self._refs[block] += 1

    def _drop(self, block: int) -> None:
        self._refs[block] -= 1
        if self._refs[block] == 0:
            if block in self._key_of:
                self._idle[block] = None
            else:
                self._free.append(block)

    def _evict(self, block: int) -> None:
        del self._idle[block]
        del self._cached[self._key_of.pop(block)]
        self._free.append(block)
