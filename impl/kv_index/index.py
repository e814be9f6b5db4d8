"""kv_index as one hash chain for all workers.

A block is a node, found by the node before it and its own tokens: an exact key, so that no two prefixes can collide. A
node has a bit for each worker that holds it. A lookup walks the chain once, whatever the number of workers, and notes
where bits fall away. So its cost is one dictionary access per block that anybody has, and an event costs one per block.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar, Literal

from kvlockstep.reference.kv_index.contract import Worker, WorkerSnapshot
from kvlockstep.reference.kv_manager.contract import BlockRemoved, BlockStored, Event

Block = tuple[Hashable, ...]
ROOT = -1


class _Cache:
    """One worker: its bit, the number of its last event, and the node of each block that it holds, by its key."""

    __slots__ = ("bit", "last", "nodes")

    def __init__(self, bit: int, last: int) -> None:
        self.bit, self.last = bit, last
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
        self._workers: dict[Worker, _Cache] = {}
        self._by_bit: dict[int, Worker] = {}
        # By node: the bits of its holders, how many nodes stand right behind it, and what it is found by. The root of
        # an extra key is a node as well, behind node ROOT, with that key for its block.
        self._holders: list[int] = []
        self._behind: list[int] = []
        self._link: list[tuple[int, Block]] = []
        self._nodes: dict[tuple[int, Block], int] = {}
        self._roots: dict[Hashable, int] = {}
        self._unused: list[int] = []

    def __len__(self) -> int:
        """The number of different blocks that are known, with those in front of orphans."""
        return len(self._nodes)

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
        node = self._roots.get(extra_key)
        if node is None:
            return {}
        find, holders = self._nodes.get, self._holders
        found: dict[Worker, int] = {}
        depth, holding = 0, -1
        for block in zip(*[iter(tokens)] * self._size, strict=False):
            node = find((node, block))
            if node is None:
                break
            still = holders[node] & holding
            if still != holding:
                if depth:
                    self._note(holding & ~still, depth, found)
                if not still:
                    return found
                holding = still
            depth += 1
        if depth:
            self._note(holding, depth, found)
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
        return [
            WorkerSnapshot(worker, cache.last, list(self._events(cache))) for worker, cache in self._workers.items()
        ]

    # ---- events ----

    def _new_cache(self, worker: Worker) -> _Cache:
        bit = 1
        while bit in self._by_bit:
            bit <<= 1
        self._by_bit[bit] = worker
        self._workers[worker] = cache = _Cache(bit, -1)
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
        node = cache.nodes.get(event.parent)
        if event.parent is None and event.keys:
            node = self._root(event.extra_key)
        if node is None:
            return
        nodes, holders, bit = self._nodes, self._holders, cache.bit
        for key, block in zip(event.keys, zip(*[iter(event.tokens)] * self._size, strict=False), strict=False):
            before, node = node, nodes.get((node, block))
            if node is None:
                node = self._new_node(before, block)
            if holders[node] & bit:
                self._again(cache, node)
            else:
                holders[node] |= bit
                cache.nodes[key] = node

    def _drop(self, cache: _Cache, key: Hashable) -> None:
        node = cache.nodes.get(key)
        if node is not None and self._is_last(cache, node):
            del cache.nodes[key]
            self._let_go(cache.bit, node)

    def _clear(self, cache: _Cache) -> None:
        for node in cache.nodes.values():
            self._let_go(cache.bit, node)
        cache.nodes.clear()

    def _again(self, cache: _Cache, node: int) -> None:
        """The worker stores a block that it has."""

    def _is_last(self, cache: _Cache, node: int) -> bool:
        """Whether the worker has one copy of the block; else it has one fewer now."""
        return True

    # ---- nodes ----

    def _root(self, extra_key: int | None) -> int:
        root = self._roots.get(extra_key)
        if root is None:
            root = self._roots[extra_key] = self._place((ROOT, (extra_key,)))
        return root

    def _new_node(self, before: int, block: Block) -> int:
        link = before, block
        node = self._nodes[link] = self._place(link)
        self._behind[before] += 1
        return node

    def _place(self, link: tuple[int, Block]) -> int:
        if self._unused:
            node = self._unused.pop()
            self._link[node] = link
            return node
        self._holders.append(0)
        self._behind.append(0)
        self._link.append(link)
        return len(self._link) - 1

    def _let_go(self, bit: int, node: int) -> None:
        """A worker holds a node no more. Nodes that nobody holds, and nothing stands behind, are given back."""
        holders, behind = self._holders, self._behind
        holders[node] &= ~bit
        while not holders[node] and not behind[node]:
            link = before, block = self._link[node]
            self._unused.append(node)
            if before == ROOT:
                del self._roots[block[0]]
                return
            del self._nodes[link]
            behind[before] -= 1
            node = before

    # ---- answers ----

    def _note(self, bits: int, depth: int, found: dict[Worker, int]) -> None:
        """Notes that the workers of these bits have the first `depth` blocks."""
        while bits:
            bit = bits & -bits
            found[self._by_bit[bit]] = depth
            bits ^= bit

    def _events(self, cache: _Cache) -> Iterator[Event]:
        """Stores, with parents first, and the removal of parents that the worker does not hold itself."""
        keys: dict[int, Hashable] = {node: key for key, node in cache.nodes.items()}
        roots = {*self._roots.values()}
        told = set(roots)
        gone: list[Hashable] = []
        for last in cache.nodes.values():
            path = []
            node = last
            while node not in told:
                told.add(node)
                path.append(node)
                node = self._link[node][0]
            for node in reversed(path):
                before, block = self._link[node]
                if node not in keys:
                    # Its own key was forgotten with it. No worker has tuples of this kind for keys.
                    keys[node] = ("removed", node)
                    gone.append(keys[node])
                parent = None if before in roots else keys[before]
                extra_key = self._link[before][1][0] if before in roots else None
                event = BlockStored((keys[node],), parent, block, self._size, extra_key)
                for _ in range(self._copies(cache, node)):
                    yield event
        if gone:
            yield BlockRemoved(tuple(gone))

    def _copies(self, cache: _Cache, node: int) -> int:
        return 1


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

    def _clear(self, cache: _Cache) -> None:
        for node in cache.nodes.values() if self._further else ():
            self._further.pop((cache.bit, node), None)
        super()._clear(cache)

    def _copies(self, cache: _Cache, node: int) -> int:
        return 1 + self._further.get((cache.bit, node), 0)
