"""Speed of a router's index: lookups and events per second, with a million blocks of 64 workers in it.

The floor is the plain index that one would write first: a dict of dicts, hash of prefix to workers. The peer is
Dynamo's RadixTree, where it is here. They take turns after each part of the calls, and the median part counts, in CPU
time of all threads, since Dynamo's tree lives in one of its own.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvlockstep.bench.timing import Speed, no_gc
from kvlockstep.reference.kv_manager.contract import BlockRemoved, BlockStored, Event

BLOCK_SIZE = 16
VOCABULARY = 50_000
# So many turns that the indexes take in each row.
PARTS = 20
Make = Callable[[int], Any]


@dataclass(frozen=True)
class Load:
    """`blocks` different blocks of `workers`, in prompts of `length` blocks, the first `shared` of which are those of
    one of `systems` system prompts. An event stores or removes `batch` blocks.
    """

    blocks: int = 1_000_000
    workers: int = 64
    length: int = 256
    shared: int = 64
    systems: int = 100
    batch: int = 16
    lookups: int = 2_000


LOAD = Load()


class DictOfDicts:
    """The floor: which workers have a block, by the hash of its tokens and of all before them.

    Python's own hash of 64 bits, which is cheap, and not safe: two prefixes may collide.
    """

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._workers: dict[int, dict[Hashable, None]] = {}
        self._hashes: dict[Hashable, dict[Hashable, int]] = {}

    def apply(self, worker: Hashable, _number: int, event: Event) -> None:
        """Takes in an event, whatever its number."""
        named = self._hashes.setdefault(worker, {})
        if isinstance(event, BlockStored):
            chain = hash(event.extra_key) if event.parent is None else named[event.parent]
            for key, block in zip(event.keys, self._blocks(event.tokens), strict=True):
                chain = named[key] = hash((chain, block))
                self._workers.setdefault(chain, {})[worker] = None
        elif isinstance(event, BlockRemoved):
            for key in event.keys:
                chain = named.pop(key)
                holders = self._workers[chain]
                del holders[worker]
                if not holders:
                    del self._workers[chain]

    def known(self, tokens: Sequence[int], extra_key: int | None) -> dict[Hashable, int]:
        """Returns the cached blocks at the head of the sequence for each worker that has any."""
        chain, depth, found = hash(extra_key), 0, {}
        active: list[Hashable] | None = None
        for block in self._blocks(tokens):
            chain = hash((chain, block))
            holders = self._workers.get(chain, {})
            still = list(holders) if active is None else [worker for worker in active if worker in holders]
            for worker in active or ():
                if worker not in holders:
                    found[worker] = depth
            active, depth = still, depth + 1
            if not still:
                return found
        return {**found, **dict.fromkeys(active or (), depth)}

    def _blocks(self, tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
        return zip(*[iter(tokens)] * self._size, strict=False)


def bench_kv_index(ours: Make, dynamo: Make | None = None, load: Load = LOAD) -> list[Speed]:
    """Lookups and events per second of our index, beside the floor, and beside Dynamo's if it is given."""
    prompts, events = workload(load)
    makes = [ours, DictOfDicts] + ([] if dynamo is None else [dynamo])
    rows = []
    for row, (mine, floor, *peer) in _figures([make(BLOCK_SIZE) for make in makes], prompts, events, load).items():
        peers = {"Dynamo": peer[0]} if peer else {}
        rows.append(Speed(row, "thousand/s", mine, floor, 0.0, more_is_better=True, peers=peers))
    return rows


def workload(load: Load, seed: int = 7) -> tuple[list[list[int]], list[tuple[int, Event]]]:
    """The prompts, and the store events that leave all of them cached, each on one worker."""
    numbers = random.Random(seed)
    # One object for each token: a million blocks of separate ones would not fit into a small machine.
    words = list(range(VOCABULARY))

    def some(blocks: int) -> list[int]:
        return numbers.choices(words, k=blocks * BLOCK_SIZE)

    systems = [some(load.shared) for _ in range(load.systems)]
    prompts = []
    events: list[tuple[int, Event]] = []
    told: set[tuple[int, int]] = set()
    own = load.length - load.shared
    for i in range(max((load.blocks - load.systems * load.shared) // own, 1)):
        worker, system = numbers.randrange(load.workers), i % load.systems
        prompt = systems[system] + some(own)
        prompts.append(prompt)
        # Keys are numbers: those of a system prompt are small, and the same on each worker.
        first = load.systems * load.shared + i * own
        keys = [*range(system * load.shared, (system + 1) * load.shared), *range(first, first + own)]
        start = load.shared if (worker, system) in told else 0
        told.add((worker, system))
        for at in range(start, load.length, load.batch):
            end = min(at + load.batch, load.length)
            tokens = tuple(prompt[at * BLOCK_SIZE : end * BLOCK_SIZE])
            events.append((worker, BlockStored(tuple(keys[at:end]), keys[at - 1] if at else None, tokens, BLOCK_SIZE)))
    return prompts, events


def _figures(
    indexes: Sequence[Any], prompts: Sequence[Sequence[int]], events: Sequence[tuple[int, Event]], load: Load
) -> dict[str, list[float]]:
    """Thousands of operations per second by row, of each index. Removals take the last events back, children first."""
    half = load.length * BLOCK_SIZE // 2
    numbers = random.Random(1)
    asked = [list(numbers.choice(prompts)) for _ in range(load.lookups)]
    halves = [prompt[:half] + prompt[:half] for prompt in asked]
    strangers = [prompt[half:] for prompt in asked]
    last: dict[int, int] = {}
    numbered = []
    for worker, event in events:
        last[worker] = last.get(worker, -1) + 1
        numbered.append((worker, last[worker], event))
    removals = []
    for worker, event in reversed(events[-len(events) // 10 :]):
        last[worker] += 1
        removals.append((worker, last[worker], BlockRemoved(tuple(reversed(event.keys)))))  # type: ignore[union-attr]
    applied, asking = [index.apply for index in indexes], [index.known for index in indexes]
    with no_gc():
        return {
            f"store events of {load.batch} blocks": _thousands(applied, numbered),
            f"lookups of {load.length} blocks, all known": _thousands(asking, [(p, None) for p in asked]),
            f"lookups of {load.length} blocks, half known": _thousands(asking, [(p, None) for p in halves]),
            "lookups of unknown prompts": _thousands(asking, [(p, None) for p in strangers]),
            f"remove events of {load.batch} blocks": _thousands(applied, removals),
        }


def _thousands(calls: Sequence[Callable[..., Any]], arguments: Sequence[tuple[Any, ...]]) -> list[float]:
    size = max(1, len(arguments) // PARTS)
    seconds: list[list[float]] = [[] for _ in calls]
    for at in range(0, len(arguments), size):
        part = arguments[at : at + size]
        for i, call in enumerate(calls):
            start = time.process_time()
            for one in part:
                call(*one)
            seconds[i].append((time.process_time() - start) / len(part))
    return [1 / max(statistics.median(parts), 1e-9) / 1_000 for parts in seconds]
