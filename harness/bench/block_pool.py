"""Speed of a block_pool: allocator churn, removal from the middle, block keys. Floors are measured in the same run."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable
from typing import Any

from kvlockstep.bench.timing import Call, Speed, best_of, no_gc

Take = Callable[[int], list[int]]
Give = Callable[[list[int]], None]

BLOCKS = 100_000
BATCHES = {1: 1.6, 16: 2.7, 256: 2.7}
RING = 64
BLOCK_SIZE = 16
PROMPT = 32 * 1024


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
    return [*bench_churn(queue, pool), *bench_removal(queue), *bench_keys(pool)]


def bench_churn(queue: Callable[..., Any], pool: Callable[..., Any], rounds: int = 40) -> list[Speed]:
    """a: 100k blocks, half of them held, a ring of 64 batches; one allocation and one free, per block."""
    rows = []
    for batch, goal in BATCHES.items():
        stack, free_queue, blocks = ListStack(BLOCKS), queue(BLOCKS, range(BLOCKS)), pool(BLOCKS, BLOCK_SIZE)
        calls = [
            churn(stack.take, stack.give, batch),
            churn(free_queue.pop, free_queue.append, batch),
            churn(blocks.allocate, blocks.free, batch),
        ]
        cycles = max(1, 256 // batch)
        floor, ours, whole = [1e9 * t / (RING * batch) for t in best_of(calls, rounds, cycles)]
        rows.append(Speed(f"a churn, batch {batch}", "ns per block", ours, floor, goal))
        rows.append(
            Speed(f"a churn of the pool, counted and checked, batch {batch}", "ns per block", whole, floor, 0.0)
        )
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
            start = time.perf_counter()
            for _ in range(3):
                for some in batches:
                    free_queue.remove(some)
                    free_queue.append(some)
            best = min(best, time.perf_counter() - start)
    return 1e9 * best / (3 * len(batches) * batch)


def bench_keys(pool: Callable[..., Any], rounds: int = 60) -> list[Speed]:
    """b: the keys of a prompt of 32k int32 tokens, blocks of 16, per 1,000 tokens; and of a request growing to it."""
    tokens = prompt()
    blocks = pool(BLOCKS, BLOCK_SIZE)
    pieces = [tokens[i : i + BLOCK_SIZE] for i in range(0, PROMPT, BLOCK_SIZE)]

    def grow(pieces: list[array[int]]) -> None:
        keys = blocks.request_keys()
        for piece in pieces:
            keys.extend(piece)
            _ = keys.hashes

    def short() -> None:
        for _ in range(PROMPT // 1024):
            grow(pieces[: 1024 // BLOCK_SIZE])

    def whole() -> None:
        grow([tokens])

    def growing() -> None:
        grow(pieces)

    floor = xxh3_chain(tokens.tobytes())
    times = best_of([whole, floor or whole], rounds, 1) + best_of([growing, short], rounds // 10, 1)
    ours, bare, grown, young = [1e6 * t / (PROMPT / 1000) for t in times]
    unit = "us per 1k tokens"
    return [
        Speed("b keys of a 32k prompt; floor: xxh3-128 chain", unit, ours, *((bare, 1.2) if floor else (0.0, 0.0))),
        Speed("b keys of a request growing to 32k by the block; floor: to 1k", unit, grown, young, 1.2),
    ]


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
