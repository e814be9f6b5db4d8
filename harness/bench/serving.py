"""A block pool in the steady state of a server, where every block caches something; and its longest calls."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any

from kvlockstep.bench.peers import BLOCK_SIZE, pools
from kvlockstep.bench.timing import Call, Speed, cpu_best_of, worst_call

BATCH = 16
MANY = 1_000_000
CALLS = 5_000


def bench_serving(make: Callable[..., Any], blocks: int = 100_000, rounds: int = 15) -> list[Speed]:
    """Evict, cache and free a request of 16 blocks; hold and let go 16 random ones; evict one. Peers are in turn."""
    servers = {name: maker(blocks) for name, maker in pools(make).items()}
    cycles = {name: cycles_of(server, blocks) for name, server in servers.items()}
    hits = {name: hits_of(server, blocks) for name, server in servers.items()}
    for name in servers:
        for call in islice(hits[name], blocks // 8):
            call()
    ones = {name: partial(server.allocate, 1) for name, server in servers.items()}
    turns = [partial(_next, cycles[name]) for name in servers], [partial(_next, hits[name]) for name in servers]
    rows = []
    for what, calls in zip(("evict, cache and free 16", "hold 16 random cached blocks and let go"), turns, strict=True):
        times = [1e9 * t / BATCH for t in cpu_best_of(calls, rounds, 1_000)]
        rows.append(_row(f"a pool, {what}", "ns per block", dict(zip(servers, times, strict=True))))
    times = [1e6 * t for t in cpu_best_of(list(ones.values()), rounds, 200)]
    rows.append(_row("a pool, evict one block", "us", dict(zip(servers, times, strict=True))))
    return rows


def bench_longest(queue: Callable[..., Any], make: Callable[..., Any], blocks: int = MANY) -> list[Speed]:
    """The longest single calls with so many blocks, in microseconds: each the quickest of three runs (`worst_call`)."""
    calls = {
        "a queue, pop and removal after as many frees": lambda: queue_calls(queue, blocks),
        "a pool, evict, cache and free 16": lambda: list(islice(filled(make, blocks)[1], CALLS)),
        "a pool, hold and let go 16": lambda: list(islice(hits_of(filled(make, blocks)[0], blocks), CALLS)),
        "a pool, evict one of as many twins": lambda: twin_calls(make, blocks),
    }
    return [
        Speed(f"{what}, {blocks:,} blocks", "us, longest call", worst := worst_call(some), 0.0, 0.0, worst=worst)
        for what, some in calls.items()
    ]


def queue_calls(queue: Callable[..., Any], blocks: int) -> list[Call]:
    """The calls on a queue to which all blocks were just freed: pops of one, and removals and frees of one."""
    free_queue = queue(blocks, ())
    free_queue.append(list(range(blocks)))
    some = random.Random(7).sample(range(blocks // 2, blocks), CALLS)
    calls: list[Call] = [partial(free_queue.pop, 1)] * CALLS
    for block in some:
        calls += [partial(free_queue.remove, [block]), partial(free_queue.append, [block])]
    return calls


def filled(make: Callable[..., Any], blocks: int) -> tuple[Any, Iterator[Call]]:
    """A pool of which every block is cached and free, and the calls that go on like that, each one of the pool's."""
    server = pools(make)["ours"](blocks)
    calls = steps_of(server, blocks)
    for call in islice(calls, 3 * blocks // BATCH):
        call()
    return server, calls


def steps_of(server: Any, blocks: int) -> Iterator[Call]:
    """Allocate, cache and free a request of 16 blocks that was never there: one call of the pool each."""
    for first in range(0, 4 * blocks * BLOCK_SIZE, BATCH * BLOCK_SIZE):
        request = server.request(array("i", range(first, first + BATCH * BLOCK_SIZE)))
        table: list[int] = []
        yield lambda table=table: table.extend(server.allocate(BATCH))  # type: ignore[misc]
        yield partial(server.cache, request, table)
        yield partial(server.free, table)


def twin_calls(make: Callable[..., Any], blocks: int) -> list[Call]:
    """Evictions from a pool in which every block caches the same prefix."""
    pool = make(blocks, BLOCK_SIZE)
    keys = pool.request_keys()
    keys.extend(array("i", range(BLOCK_SIZE)))
    for _ in range(blocks):
        pool.cache_full_blocks(keys, pool.allocate(1), 0, 1)
    pool.free(list(range(blocks))[::-1])
    return [partial(pool.allocate, 1)] * CALLS


def cycles_of(server: Any, blocks: int) -> Iterator[Call]:
    """Endless rounds of a quarter more requests than the pool holds, after one that fills it."""
    numbers = random.Random(7)
    requests = [
        server.request([numbers.randrange(128_000) for _ in range(BATCH * BLOCK_SIZE)])
        for _ in range(blocks // BATCH * 5 // 4)
    ]

    def serve(request: Any) -> None:
        table = server.allocate(BATCH)
        server.cache(request, table)
        server.free(table)

    for request in requests[: blocks // BATCH]:
        serve(request)
    following = requests[blocks // BATCH :] + requests[: blocks // BATCH]
    return (partial(serve, request) for request in cycle(following))


def hits_of(server: Any, blocks: int) -> Iterator[Call]:
    """Endless hits of 16 random blocks, all of which are cached and free."""
    order = list(range(blocks))
    random.Random(7).shuffle(order)
    tables = [server.table(order[i : i + BATCH]) for i in range(0, blocks - BATCH + 1, BATCH)]

    def hit(table: Sequence[Any]) -> None:
        server.touch(table)
        server.free(table)

    return (partial(hit, table) for table in cycle(tables))


def _next(calls: Iterator[Call]) -> None:
    next(calls)()


def _row(what: str, unit: str, times: dict[str, float]) -> Speed:
    ours = times.pop("ours")
    return Speed(what, unit, ours, 0.0, 0.0, peers=times)
