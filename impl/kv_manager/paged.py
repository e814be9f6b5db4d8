"""kv_manager on a paged_cache: a request is a sequence, its computed blocks are registered under chained hashes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

from kvlockstep.impl.kv_manager.tables import RequestManager
from kvlockstep.impl.paged_cache import PagedCache
from kvlockstep.impl.slots import slots_of
from kvlockstep.reference.errors import OutOfSlots
from kvlockstep.reference.kv.shape import KVShape

KEY_BYTES = 16
# The cache counts bytes by it; a StoreMemory has a shape of its own.
SHAPE = KVShape(layers=2, heads=1, head_dim=4, dtype="bfloat16")


class DueCopy(NamedTuple):
    """A block copy that waits for the forward; until then `kept`, a fork of the sequence, holds the source."""

    rid: str
    source: int
    target: int
    kept: int


class Request:
    """A live request and its sequence in the cache, as long as what is computed and reserved.

    `keys` has one key for each full block of known tokens that was asked for so far; `registered` blocks are cached.
    """

    __slots__ = ("computed", "extra_key", "fresh", "keys", "registered", "sequence", "tokens")

    def __init__(
        self, tokens: array[int], extra_key: int | None, keys: list[int], sequence: int, computed: int
    ) -> None:
        self.tokens = tokens
        self.extra_key = extra_key
        self.keys = keys
        self.sequence = sequence
        self.computed = computed
        self.registered = 0
        self.fresh = False


class PagedManager(RequestManager[Request]):
    """`blocks` blocks of `block_size` slots. Meets KVManagerTarget with every optional method.

    Trick: forks of a sequence keep what a step may take back or copy from, at one sequence of the cache for each.

    A key is a 128-bit hash over the extra key and all tokens up to the end of a block: equal keys are taken for equal
    prefixes. With `tensors` the KV lies in `memory`, a StoreMemory on `device` in `layout`, and moves by its copies.
    """

    chunk = extra_key = copies_at_reserve = True
    hash_trust = "none"

    def __init__(
        self,
        blocks: int,
        block_size: int,
        *,
        policy: str = "lru",
        tensors: bool = False,
        device: str = "cpu",
        layout: str = "layer_major",
    ) -> None:
        self.cache = PagedCache(blocks, block_size, policy, SHAPE)
        self._layout = layout
        super().__init__(blocks, block_size, tensors=tensors, device=device)

    def _make_memory(self, blocks: int, device: str) -> Any:
        from kvlockstep.impl.kv_store.oracle_memory import StoreMemory  # noqa: PLC0415  torch is an extra

        return StoreMemory(blocks, self.block_size, self._layout, device)

    def reset(self) -> None:
        """Ends every request and forgets everything cached."""
        self.cache.reset()
        self._live = {}
        self._due: list[DueCopy] = []
        self._named = 0

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        """Holds the longest registered prefix that leaves a token to compute, and blocks for `n` tokens more."""
        known = array("q", tokens)
        keys = self._extended([], known, extra_key, (len(known) - 1) // self.block_size)
        hit = len(self.cache.lookup(keys)) * self.block_size
        length = min(hit + n, len(known))
        sequence = self._new_sequence()
        try:
            cached, _ = self.cache.allocate(sequence, length, keys[: length // self.block_size])
        except OutOfSlots:
            return None
        request = self._live[rid] = Request(known, extra_key, keys, sequence, cached)
        request.registered = cached // self.block_size
        request.fresh = True
        return cached

    def append(self, rid: str, token: int) -> None:
        """One more token is known."""
        self._live[rid].tokens.append(token)

    def reserve(self, rid: str, n: int) -> bool:
        """Room for the next `n` tokens; a shared block that they start in is copied first."""
        request = self._live[rid]
        kept = -1
        if self.cache.must_copy(request.sequence):
            kept = self._new_sequence()
            self.cache.fork(request.sequence, kept)
        try:
            _, copies = self.cache.append(request.sequence, n)
        except OutOfSlots:
            if kept >= 0:
                self.cache.free(kept)
            return False
        self._due += [DueCopy(rid, source, target, kept) for source, target in copies]
        return True

    def copies(self) -> list[tuple[int, int]]:
        """The slot copies of this step's copy-on-writes."""
        size = self.block_size
        return [(due.source * size + i, due.target * size + i) for due in self._due for i in range(size)]

    def launch(self) -> None:
        """The copies have run: their sources may go."""
        for due in self._due:
            self.cache.free(due.kept)
        self._due.clear()

    def slots(self, rid: str) -> list[int]:
        """The slots of the request's blocks, in order."""
        return slots_of(self.blocks(rid), self.block_size)

    def blocks(self, rid: str) -> list[int]:
        """The request's block table."""
        return self.cache.table(self._live[rid].sequence)

    def commit(self, rid: str, n: int) -> None:
        """`n` tokens more are computed, what was reserved beyond is given back; full blocks are registered."""
        request = self._live[rid]
        request.computed += n
        request.fresh = False
        if self.cache.length(request.sequence) > request.computed:
            self.cache.truncate(request.sequence, request.computed)
        full, first = request.computed // self.block_size, request.registered
        if full > first:
            keys = self._extended(request.keys, request.tokens, request.extra_key, full)
            self.cache.register(request.sequence, keys[first:full], first)
            request.registered = full

    def finish(self, rid: str) -> None:
        """Gives the request's blocks up; what is registered stays cached."""
        self.cache.free(self._live.pop(rid).sequence)

    def withdraw(self, rid: str) -> None:
        """Takes back the request's admission or reservation of this step."""
        request = self._live[rid]
        if request.fresh:
            self.finish(rid)
            return
        for due in self._due:
            if due.rid == rid:
                self.cache.free(request.sequence)
                request.sequence = due.kept
                self._due.remove(due)
                return
        self.cache.truncate(request.sequence, request.computed)

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        """The child shares every block that its parent has computed into; nothing is copied now."""
        parent = self._live[rid]
        sequence = self._new_sequence()
        self.cache.fork(parent.sequence, sequence, parent.computed)
        request = Request(parent.tokens[:], parent.extra_key, parent.keys.copy(), sequence, parent.computed)
        request.registered = parent.registered
        self._live[child] = request
        return []

    def evict_all(self) -> None:
        """Drops every cached block that no request holds."""
        self.cache.evict(self.cache.num_idle)

    def avail(self) -> int:
        """Slots of free and of idle blocks."""
        return (self.cache.num_free + self.cache.num_idle) * self.block_size

    def free_now(self) -> int:
        """Slots of free blocks."""
        return self.cache.num_free * self.block_size

    def free_slots(self) -> Iterable[int] | None:
        """The slots of the free blocks."""
        return slots_of(self.cache.free_blocks(), self.block_size)

    def free_blocks(self) -> list[int]:
        """The free blocks."""
        return self.cache.free_blocks()

    def _new_sequence(self) -> int:
        self._named += 1
        return self._named

    def _extended(self, keys: list[int], tokens: array[int], extra_key: int | None, blocks: int) -> list[int]:
        """`keys`, made as long as so many blocks of `tokens`."""
        size = self.block_size
        for i in range(len(keys), blocks):
            parent = keys[-1].to_bytes(KEY_BYTES, "little") if keys else repr(extra_key).encode()
            digest = blake2b(parent + b"|" + tokens[i * size : (i + 1) * size].tobytes(), digest_size=KEY_BYTES)
            keys.append(int.from_bytes(digest.digest(), "little"))
        return keys
