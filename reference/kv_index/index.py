"""kv_index: a set of cached prefixes for each worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from kvlockstep.reference.kv_index.contract import Worker, WorkerSnapshot
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event

# The extra key of a sequence, and its tokens up to the end of a block.
Prefix = tuple[int | None, tuple[int, ...]]


class WorkerCache:
    """The cache of one worker: `last` is the number of its last event, `copies` counts each cached prefix.

    `named` keeps what a key names also after its removal: blocks may still be stored behind it.
    """

    def __init__(self, block_size: int, counting: bool, last: int = -1) -> None:
        self._size, self._counting = block_size, counting
        self.last = last
        self.copies: Counter[Prefix] = Counter()
        self.named: dict[Hashable, Prefix] = {}

    def take(self, event: Event) -> None:
        """Takes in an event, as far as it makes sense."""
        match event:
            case BlockStored():
                self.store(event)
            case BlockRemoved():
                for key in event.keys:
                    self.drop(key)
            case AllBlocksCleared():
                self.copies.clear()
                self.named.clear()

    def store(self, event: BlockStored) -> None:
        """Adds the blocks of the event; none behind a parent that is not known, since their prefix is not either."""
        root: Prefix = (event.extra_key, ())
        parent = root if event.parent is None else self.named.get(event.parent)
        if parent is None:
            return
        extra_key, tokens = parent
        for i, key in enumerate(event.keys):
            tokens += tuple(event.tokens[i * self._size : (i + 1) * self._size])
            self.named[key] = (extra_key, tokens)
            self.add((extra_key, tokens))

    def add(self, prefix: Prefix) -> None:
        """One more copy of a block, if copies are counted."""
        self.copies[prefix] = self.copies[prefix] + 1 if self._counting else 1

    def drop(self, key: Hashable) -> None:
        """One copy fewer of the block that the key names."""
        prefix = self.named.get(key)
        if prefix is not None and prefix in self.copies:
            self.copies[prefix] -= 1
            if not self.copies[prefix]:
                del self.copies[prefix]

    def head(self, tokens: Sequence[int], extra_key: int | None) -> int:
        """The number of whole blocks at the head of a sequence that are cached, one after the other."""
        whole = len(tokens) // self._size
        heads = (tuple(tokens[: n * self._size]) for n in range(1, whole + 1))
        return next((n for n, head in enumerate(heads) if (extra_key, head) not in self.copies), whole)

    def events(self) -> Iterator[Event]:
        """What makes this cache of an empty one: stores with parents first, then removals of parents that are gone."""
        keys = {prefix: key for key, prefix in self.named.items()}
        paths = dict.fromkeys((extra, head) for extra, tokens in self.copies for head in heads(tokens, self._size))
        for prefix in sorted(paths, key=lambda prefix: len(prefix[1])):
            extra_key, tokens = prefix
            before, last = tokens[: -self._size], tokens[-self._size :]
            parent = keys[extra_key, before] if before else None
            for _ in range(self.copies.get(prefix, 1)):
                yield BlockStored((keys[prefix],), parent, last, self._size, extra_key)
        if gone := [prefix for prefix in paths if prefix not in self.copies]:
            yield BlockRemoved(tuple(keys[prefix] for prefix in gone))


def heads(tokens: tuple[int, ...], block_size: int) -> list[tuple[int, ...]]:
    """The tokens up to the end of each of their blocks."""
    return [tokens[:end] for end in range(block_size, len(tokens) + 1, block_size)]


class KVIndex:
    """Meets the contract for blocks of `block_size` tokens, and keeps orphans. Source: docs/kv_index.md."""

    extra_key = True
    event_listener = "set"
    orphans = "kept"
    tells_gaps = True
    ignores_old = True
    can_resync = True
    can_snapshot = True

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._workers: dict[Worker, WorkerCache] = {}

    def new_cache(self, last: int = -1) -> WorkerCache:
        """An empty cache, behind the event `last`."""
        return WorkerCache(self._size, self.event_listener == "counting", last)

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        """Takes in an event. Returns whether events were missed before it; an old event changes nothing."""
        cache = self._workers.setdefault(worker, self.new_cache())
        if number <= cache.last:
            return False
        gap = number > cache.last + 1
        cache.last = number
        cache.take(event)
        return gap

    def known(self, tokens: Sequence[int], extra_key: int | None) -> dict[Worker, int]:
        """Returns the cached blocks at the head of the sequence for each worker."""
        return {worker: cache.head(tokens, extra_key) for worker, cache in self._workers.items()}

    def remove(self, worker: Worker) -> None:
        """Forgets a worker."""
        self._workers.pop(worker, None)

    def resync(self, worker: Worker, number: int, events: Sequence[Event]) -> None:
        """Replaces what is known of a worker."""
        self._workers[worker] = self.new_cache(number)
        for event in events:
            self._workers[worker].take(event)

    def snapshot(self) -> list[WorkerSnapshot]:
        """Returns every worker with its last number and the events that make its cache."""
        return [WorkerSnapshot(name, cache.last, list(cache.events())) for name, cache in self._workers.items()]
