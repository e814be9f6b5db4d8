"""kv_index on chains of blocks that all workers share: a lookup walks them once, whatever the number of workers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar, Literal

from kvlockstep.impl.kv_index.chains import Chains, depths, packed
from kvlockstep.reference.kv_index.contract import Worker, WorkerSnapshot
from kvlockstep.reference.kv_manager.contract import BlockRemoved, BlockStored, Event


class _Cache:
    """One worker: its bit, the number of its last event, and the node of each block that it holds, by its key."""

    __slots__ = ("bit", "last", "nodes")

    def __init__(self, bit: int) -> None:
        self.bit, self.last = bit, -1
        self.nodes: dict[Hashable, int] = {}


class KVIndex:
    """Meets the contract for blocks of `block_size` tokens, for any number of workers. Orphans are kept.

    A key is forgotten with its block, so that nothing can be stored behind a removed one.
    """

    extra_key = True
    event_listener: ClassVar[Literal["set", "counting"]] = "set"
    orphans = "kept"
    tells_gaps = True
    ignores_old = True
    can_resync = True
    can_snapshot = True

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._chains = Chains(block_size)
        self._workers: dict[Worker, _Cache] = {}
        self._by_bit: dict[int, Worker] = {}

    def __len__(self) -> int:
        """The number of different blocks that are known."""
        return len(self._chains)

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        """Takes in an event. Returns whether events were missed before it; an old event changes nothing."""
        cache = self._workers.get(worker) or self._new_cache(worker)
        expected = cache.last + 1
        if number < expected:
            return False
        cache.last = number
        self._take(cache, event)
        return number > expected

    def known(self, tokens: Sequence[int], extra_key: int | None) -> dict[Worker, int]:
        """Returns the cached blocks at the head of the sequence for each worker that has any."""
        root = self._chains.find_root(extra_key)
        if root is None:
            return {}
        found: dict[Worker, int] = {}
        for bits, depth in depths(self._chains.holders, self._runs(root, tokens)):
            while bits:
                bit = bits & -bits
                found[self._by_bit[bit]] = depth
                bits ^= bit
        return found

    def remove(self, worker: Worker) -> None:
        """Forgets a worker; its bit goes to the next one that comes."""
        cache = self._workers.pop(worker, None)
        if cache is not None:
            self._clear(cache)
            del self._by_bit[cache.bit]

    def resync(self, worker: Worker, number: int, events: Sequence[Event]) -> None:
        """Replaces what is known of a worker."""
        cache = self._workers.get(worker) or self._new_cache(worker)
        self._clear(cache)
        cache.last = number
        for event in events:
            self._take(cache, event)

    def snapshot(self) -> list[WorkerSnapshot]:
        """Returns every worker with its last number and the events that make its cache."""
        return [WorkerSnapshot(name, cache.last, list(self._events(cache))) for name, cache in self._workers.items()]

    def _runs(self, node: int, tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The runs of nodes of a sequence."""
        # Packing the tokens costs most of a lookup, so a prompt that nobody knows is packed no further than it must.
        size, at, blocks = self._size, 0, 1
        while at < len(tokens):
            data = packed(tokens[at : at + blocks * size])
            there = 0
            for first, length in self._chains.walk(node, data):
                yield first, length
                node = first + length - 1
                there += length
            if there < blocks:
                return
            at += blocks * size
            blocks *= 4

    def _new_cache(self, worker: Worker) -> _Cache:
        bit = 1
        while bit in self._by_bit:
            bit <<= 1
        self._by_bit[bit] = worker
        self._workers[worker] = cache = _Cache(bit)
        return cache

    def _take(self, cache: _Cache, event: Event) -> None:
        if isinstance(event, BlockStored):
            self._store(cache, event)
        elif isinstance(event, BlockRemoved):
            for key in event.keys:
                self._drop(cache, key)
        else:
            self._clear(cache)

    def _store(self, cache: _Cache, event: BlockStored) -> None:
        keys, chains, bit = event.keys, self._chains, cache.bit
        node = cache.nodes.get(event.parent)
        if event.parent is None and keys:
            node = chains.root(event.extra_key)
        if node is None:
            return
        data = packed(event.tokens)
        holders, there = chains.holders, 0
        for first, length in chains.walk(node, data):
            for node in range(first, first + length):
                if holders[node] & bit:
                    self._again(cache, node)
                else:
                    holders[node] |= bit
                    cache.nodes[keys[there]] = node
                there += 1
        new = chains.extend(node, data[there * chains.width :], bit)
        cache.nodes.update(zip(keys[there:], new, strict=True))

    def _drop(self, cache: _Cache, key: Hashable) -> None:
        node = cache.nodes.get(key)
        if node is not None and self._is_last(cache, node):
            del cache.nodes[key]
            self._chains.let_go(cache.bit, node)

    def _clear(self, cache: _Cache) -> None:
        # The last stored first: children before their parents, as they are removed.
        for node in reversed(cache.nodes.values()):
            self._chains.let_go(cache.bit, node)
        cache.nodes.clear()

    def _again(self, cache: _Cache, node: int) -> None:
        """The worker stores a block that it has."""

    def _is_last(self, cache: _Cache, node: int) -> bool:
        """Whether the worker has one copy of the block; else it has one fewer now."""
        return True

    def _copies(self, cache: _Cache, node: int) -> int:
        return 1

    def _events(self, cache: _Cache) -> Iterator[Event]:
        """Stores, with parents first, and the removal of parents that the worker does not hold itself."""
        chains = self._chains
        keys: dict[int, Hashable] = {node: key for key, node in cache.nodes.items()}
        told: set[int] = set()
        gone: list[Hashable] = []
        for node in cache.nodes.values():
            path = []
            while node not in told and not chains.is_root(node):
                told.add(node)
                path.append(node)
                node = chains.before(node)
            for node in reversed(path):
                if node not in keys:
                    # Its own key was forgotten with it. No worker has tuples of this kind for keys.
                    keys[node] = ("removed", node)
                    gone.append(keys[node])
                parent = keys.get(chains.before(node))
                extra_key = chains.extra_key(chains.before(node))
                event = BlockStored((keys[node],), parent, chains.tokens(node), self._size, extra_key)
                for _ in range(self._copies(cache, node)):
                    yield event
        if gone:
            yield BlockRemoved(tuple(gone))


class CountingKVIndex(KVIndex):
    """A KVIndex whose workers announce each copy of a block. Only further copies are counted: they are rare."""

    event_listener = "counting"

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._further: dict[tuple[int, int], int] = {}

    def _again(self, cache: _Cache, node: int) -> None:
        self._further[cache.bit, node] = self._further.get((cache.bit, node), 0) + 1

    def _is_last(self, cache: _Cache, node: int) -> bool:
        further = self._further.pop((cache.bit, node), 0)
        if further > 1:
            self._further[cache.bit, node] = further - 1
        return not further

    def _copies(self, cache: _Cache, node: int) -> int:
        return 1 + self._further.get((cache.bit, node), 0)

    def _clear(self, cache: _Cache) -> None:
        for node in cache.nodes.values() if self._further else ():
            self._further.pop((cache.bit, node), None)
        super()._clear(cache)
