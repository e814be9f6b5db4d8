"""kv_manager in blocks: prefix sharing by chained block hashes, copy-on-write, O(1) free queue."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from kvlockstep.impl.kv_manager.tables import TableManager, TableRequest
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event

HashFunction = Callable[[int, bytes], int]


def chained_hash(parent: int, tokens: bytes) -> int:
    """The hash of a block from that of its parent (at first: of the extra key) and its tokens, 8 bytes each."""
    return hash((parent, tokens))


def root_hash(extra_key: int | None) -> int:
    """The parent's hash in the first block of a sequence."""
    return 0 if extra_key is None else 1 + extra_key


class CachedBlock:
    """A published block: `parent` is the published block before it, or for the first the extra key.

    Identity is the proof of the whole prefix: no two cached blocks have equal `tokens` and the same `parent`.
    """

    __slots__ = ("block", "hash", "parent", "tokens")

    def __init__(self, block: int, hash: int, parent: CachedBlock | int | None, tokens: bytes) -> None:
        self.block = block
        self.hash = hash
        self.parent = parent
        self.tokens = tokens


class Request(TableRequest):
    """A live request. `chain` are the published blocks at the head of `table`, one per whole block computed."""

    __slots__ = ("chain", "extra_key", "tokens")

    def __init__(
        self, tokens: array[int], extra_key: int | None, chain: list[CachedBlock], table: list[int], computed: int
    ) -> None:
        super().__init__(table, computed)
        self.tokens = tokens
        self.extra_key = extra_key
        self.chain = chain


class BlockManager(TableManager[Request]):
    """`blocks` blocks of `block_size` slots. Meets KVManagerTarget with every optional method.

    Trick: a chain of block hashes finds a prefix, at one hash lookup per block.

    A lookup walks the hash chain and verifies each block by tokens and parent, so `hash_function` may be as weak as it
    likes. A computed block whose content is published already is exchanged for the published one at commit; hence
    a holder of a block holds its parents, and parents outlive their children in the free queue.

    Free blocks are a stack of blank ones and, least recently released first, an OrderedDict of cached ones: a linked
    list threaded through a hash table, so both ends and the middle (a hit takes a block out) cost O(1), some 0.1 us.
    With `tensors` the KV lies in `memory`, a KVTensors on `device`. Events are kept from the first call of `events` on.
    """

    event_listener = "counting"

    def __init__(
        self,
        blocks: int,
        block_size: int,
        *,
        hash_function: HashFunction = chained_hash,
        tensors: bool = False,
        device: str = "cpu",
    ) -> None:
        self.evictions = 0
        self._blocks = blocks
        self._hash = hash_function
        self._events: list[Event] | None = None
        super().__init__(blocks, block_size, tensors=tensors, device=device)

    def reset(self) -> None:
        """Ends every request and forgets everything cached."""
        super().reset()
        self._blank = list(range(self._blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._holders = [0] * self._blocks
        self._published: list[CachedBlock | None] = [None] * self._blocks
        self._buckets: dict[int, list[CachedBlock]] = {}
        if self._events is not None:
            self._events.append(AllBlocksCleared())

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        """Pins the longest published prefix that leaves a token to compute, and owns blocks for `n` tokens more."""
        known = array("q", tokens)
        chain = self._lookup(known, extra_key)
        cached = len(chain) * self.block_size
        need = self._blocks_for(min(cached + n, len(tokens))) - len(chain)
        if need > self._free_count() - sum(not self._holders[hit.block] for hit in chain):
            return None
        # Holding comes before taking: a free cached block could otherwise be evicted to make room for its own hit.
        for hit in chain:
            self._hold(hit.block)
        table = [hit.block for hit in chain] + self._take(need)
        self._live[rid] = Request(known, extra_key, chain, table, cached)
        return cached

    def append(self, rid: str, token: int) -> None:
        """One more token is known."""
        self._live[rid].tokens.append(token)

    def commit(self, rid: str, n: int) -> None:
        """`n` tokens more are computed; the blocks that they complete are published."""
        request = self._live[rid]
        request.computed += n
        request.kept = len(request.table)
        for _ in range(len(request.chain), request.computed // self.block_size):
            self._publish(request)

    def evict_all(self) -> None:
        """Drops every cached block that no request holds."""
        while self._idle:
            self._blank.append(self._evict())

    def avail(self) -> int:
        """Slots of free blocks, blank or cached."""
        return self._free_count() * self.block_size

    def free_now(self) -> int:
        """Slots of blank blocks."""
        return len(self._blank) * self.block_size

    def free_blocks(self) -> list[int]:
        """The blank blocks."""
        return self._blank.copy()

    def events(self) -> list[Event]:
        """Returns the blocks published and evicted since the last call, in order, each block under its number.

        The first call returns all that are published now.
        """
        events = list(self._snapshot()) if self._events is None else self._events
        self._events = []
        return events

    def _snapshot(self) -> Iterator[Event]:
        """Every published block, parents first."""
        told: set[int] = set()
        for published in self._published:
            cached: CachedBlock | int | None = published
            chain = []
            while isinstance(cached, CachedBlock) and cached.block not in told:
                told.add(cached.block)
                chain.append(cached)
                cached = cached.parent
            yield from map(self._stored, reversed(chain))

    def _stored(self, cached: CachedBlock) -> Event:
        parent, tokens = cached.parent, tuple(array("q", cached.tokens))
        if isinstance(parent, CachedBlock):
            return BlockStored((cached.block,), parent.block, tokens, self.block_size)
        return BlockStored((cached.block,), None, tokens, self.block_size, parent)

    def _lookup(self, tokens: array[int], extra_key: int | None) -> list[CachedBlock]:
        """The longest chain of published blocks that is a prefix of `tokens` and not all of it."""
        data, width = tokens.tobytes(), self.block_size * tokens.itemsize
        chain: list[CachedBlock] = []
        parent: CachedBlock | int | None = extra_key
        key = root_hash(extra_key)
        for end in range(width, len(data), width):
            block = data[end - width : end]
            key = self._hash(key, block)
            hit = self._find(key, parent, block)
            if hit is None:
                break
            chain.append(hit)
            parent = hit
        return chain

    def _find(self, key: int, parent: CachedBlock | int | None, tokens: bytes) -> CachedBlock | None:
        for cached in self._buckets.get(key, ()):
            if cached.parent == parent and cached.tokens == tokens:
                return cached
        return None

    def _publish(self, request: Request) -> None:
        """Publishes the next computed block of the request, or exchanges it for the one that is published already."""
        chain, size = request.chain, self.block_size
        index = len(chain)
        parent = chain[-1] if chain else request.extra_key
        tokens = request.tokens[index * size : (index + 1) * size].tobytes()
        key = self._hash(chain[-1].hash if chain else root_hash(request.extra_key), tokens)
        cached = self._find(key, parent, tokens)
        block = request.table[index]
        if cached is None:
            cached = CachedBlock(block, key, parent, tokens)
            self._buckets.setdefault(key, []).append(cached)
            self._published[block] = cached
            if self._events is not None:
                self._events.append(self._stored(cached))
        elif cached.block != block:
            self._hold(cached.block)
            request.table[index] = cached.block
            self._release((block,))
        chain.append(cached)

    def _child_of(self, parent: Request, table: list[int]) -> Request:
        return Request(parent.tokens[:], parent.extra_key, parent.chain.copy(), table, parent.computed)

    def _free_count(self) -> int:
        return len(self._blank) + len(self._idle)

    def _is_shared(self, block: int) -> bool:
        return self._holders[block] > 1

    def _take(self, n: int) -> list[int]:
        """Takes `n` free blocks, blank ones first, then the cached one that was released first."""
        taken = [self._blank.pop() if self._blank else self._evict() for _ in range(n)]
        for block in taken:
            self._holders[block] = 1
        return taken

    def _hold(self, block: int) -> None:
        if not self._holders[block]:
            del self._idle[block]
        self._holders[block] += 1

    def _release(self, blocks: Sequence[int]) -> None:
        holders = self._holders
        for block in reversed(blocks):
            holders[block] -= 1
            if holders[block]:
                continue
            if self._published[block] is None:
                self._blank.append(block)
            else:
                self._idle[block] = None

    def _evict(self) -> int:
        """Unpublishes the cached block that was released first, and gives it to the caller."""
        block, _ = self._idle.popitem(last=False)
        cached = self._published[block]
        assert cached is not None
        bucket = self._buckets[cached.hash]
        bucket.remove(cached)
        if not bucket:
            del self._buckets[cached.hash]
        self._published[block] = None
        if self._events is not None:
            self._events.append(BlockRemoved((block,)))
        self.evictions += 1
        return block
