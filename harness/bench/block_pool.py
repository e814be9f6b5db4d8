"""Speed of a block_pool: allocator churn, removal from the middle, block keys, a server's steady state, longest calls.

Floors and peers are measured in the same run. Tokens are lists, as an engine has them.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from kvlockstep.bench.peers import hashers, pools, queues
from kvlockstep.bench.serving import bench_longest, bench_serving
from kvlockstep.bench.timing import Call, Speed, cpu_best_of, no_gc

Take = Callable[[int], list[int]]
Give = Callable[[list[int]], None]

BLOCKS = 100_000
BATCHES = {1: 1.6, 16: 2.7, 256: 2.7}
RING = 64
BLOCK_SIZE = 16
PROMPT = 32 * 1024
GROWN = 4096


class ListStack:
    """The floor of a: a stack of free blocks, which keeps no order and lets nothing go from the middle."""

    def __init__(self, blocks: int) -> None:
        self._free = list(range(blocks))

    def take(self, n: int) -> list[int]:
        """The `n` blocks that were given back last. Raises ValueError if there are fewer."""
        free = self._free
        if n > len(free):
            raise ValueError(f"{len(free)} blocks are free")
        taken = free[-n:]
        del free[-n:]
        return taken

    def give(self, blocks: list[int]) -> None:
        """Takes blocks back."""
        self._free += blocks


def bench_block_pool(queue: Callable[..., Any], pool: Callable[..., Any]) -> list[Speed]:
    """Rows a and b of the peers. `queue(capacity, blocks)` makes a free queue, `pool(blocks, block_size)` a pool."""
    rows = [*bench_churn(queue, pool), *bench_removal(queue), *bench_keys(pool)]
    return [*rows, *bench_serving(pool), *bench_longest(queue, pool)]


def bench_churn(queue: Callable[..., Any], pool: Callable[..., Any], rounds: int = 40) -> list[Speed]:
    """a: 100k blocks, half of them held, a ring of 64 batches; one allocation and one free, per block."""
    rows = []
    for batch, goal in BATCHES.items():
        stack = ListStack(BLOCKS)
        lists = {name: maker(BLOCKS) for name, maker in queues(queue).items()}
        counted = {name: maker(BLOCKS) for name, maker in pools(pool).items()}
        calls = [churn(stack.take, stack.give, batch)]
        calls += [churn(take, give, batch) for take, give in lists.values()]
        calls += [churn(server.allocate, server.free, batch) for server in counted.values()]
        floor, *times = [1e9 * t / (RING * batch) for t in cpu_best_of(calls, rounds, max(1, 256 // batch))]
        bare = dict(zip(lists, times, strict=False))
        whole = dict(zip(counted, times[len(lists) :], strict=True))
        ours = bare.pop("ours"), whole.pop("ours")
        rows.append(Speed(f"a churn, batch {batch}", "ns per block", ours[0], floor, goal, peers=bare))
        row = f"a churn of the pool, counted and checked, batch {batch}"
        rows.append(Speed(row, "ns per block", ours[1], floor, 0.0, peers=whole))
    return rows


def churn(take: Take, give: Give, batch: int) -> Call:
    """A call that frees and allocates every batch of the ring once, oldest first."""
    take(BLOCKS // 2 - RING * batch)
    ring = [take(batch) for _ in range(RING)]

    def turn() -> None:
        for i in range(RING):
            give(ring[i])
            ring[i] = take(batch)

    return turn


def bench_removal(queue: Callable[..., Any], rounds: int = 5) -> list[Speed]:
    """Any block leaves the middle and is queued again, per block; the floor is the same in a queue of 1,000."""
    few, many = (removal_time(queue, blocks, rounds) for blocks in (1_000, BLOCKS))
    return [Speed(f"a removal from the middle, {BLOCKS:,} queued", "ns per block", many, few, 0.0)]


def removal_time(queue: Callable[..., Any], blocks: int, rounds: int, batch: int = 16) -> float:
    """Nanoseconds per block, squeezing and all, over three times as many removals as there are blocks."""
    free_queue = queue(blocks, range(blocks))
    order = list(range(blocks))
    random.Random(7).shuffle(order)
    batches = [order[i : i + batch] for i in range(0, blocks - batch + 1, batch)]
    best = float("inf")
    with no_gc():
        for _ in range(rounds):
            start = time.process_time()
            for _ in range(3):
                for some in batches:
                    free_queue.remove(some)
                    free_queue.append(some)
            best = min(best, time.process_time() - start)
    return 1e9 * best / (3 * len(batches) * batch)


def bench_keys(pool: Callable[..., Any], rounds: int = 60) -> list[Speed]:
    """b: the keys of a prompt of 32k tokens, blocks of 16, per 1,000 tokens; and of a request that grows by the block.

    Whole from an int32 array and from a list, and by a digest's name; the floor is xxh3-128 in a chain over int32.
    """
    data = prompt()
    tokens = data.tolist()
    makers = {name: pool(0, BLOCK_SIZE, name) for name in (None, "sha256")}

    def grow(name: str | None, pieces: list[Any]) -> None:
        keys = makers[name].request_keys()
        for piece in pieces:
            keys.extend(piece)
            _ = keys.hashes

    pieces = [tokens[i : i + BLOCK_SIZE] for i in range(0, GROWN, BLOCK_SIZE)]
    floor = xxh3_chain(data.tobytes())
    peers, grown = hashers(tokens), hashers(tokens[:GROWN])
    ours = [partial(grow, None, [data]), partial(grow, None, [tokens]), partial(grow, "sha256", [tokens])]
    calls: list[Call] = [*ours, *(whole for whole, _ in peers.values()), floor or ours[0]]
    times = cpu_best_of(calls, rounds, 1)
    array_, list_, digest, *others, bare = [1e6 * t / (PROMPT / 1000) for t in times]
    bare = bare if floor else 0.0
    beside = dict(zip(peers, others, strict=True))
    unit = "us per 1k tokens"
    rows = [
        Speed("b keys of a 32k prompt, int32; floor: xxh3-128 chain", unit, array_, bare, 1.2 if floor else 0.0),
        Speed("b keys of a 32k prompt, a list", unit, list_, bare, 0.0, peers=beside),
        Speed("b keys of a 32k prompt, a list, sha256", unit, digest, bare, 0.0, peers=beside),
    ]
    growing: list[Call] = [
        partial(grow, None, pieces),
        partial(grow, "sha256", pieces),
        *(more for _, more in grown.values()),
    ]
    plain, digest, *others = [1e6 * t / (GROWN / 1000) for t in cpu_best_of(growing, rounds // 4, 2)]
    beside = dict(zip(grown, others, strict=True))
    rows.append(Speed("b keys of a request growing to 4k by the block", unit, plain, 0.0, 0.0, peers=beside))
    rows.append(Speed("b keys of a request growing to 4k by the block, sha256", unit, digest, 0.0, 0.0, peers=beside))
    return rows


def prompt(tokens: int = PROMPT) -> array[int]:
    """A prompt, int32."""
    numbers = random.Random(7)
    return array("i", [numbers.randrange(128_000) for _ in range(tokens)])


def xxh3_chain(data: bytes) -> Call | None:
    """A call that hashes blocks of int32 tokens, each behind the hash of the one before; None without xxhash."""
    try:
        import xxhash  # noqa: PLC0415
    except ImportError:
        return None
    width = 4 * BLOCK_SIZE
    digest = xxhash.xxh3_128_digest

    def chain() -> list[bytes]:
        key, keys = b"", []
        for start in range(0, len(data), width):
            key = digest(key + data[start : start + width])
            keys.append(key)
        return keys

    return chain
