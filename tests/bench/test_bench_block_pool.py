"""Rows a and b: allocator churn, and block keys. `extra_info` has the floor measured in the same run, and the ratio."""

from __future__ import annotations

import pytest

from kvlockstep.bench.block_pool import (
    BATCHES,
    BLOCK_SIZE,
    BLOCKS,
    PROMPT,
    RING,
    bench_churn,
    bench_keys,
    bench_removal,
    churn,
    prompt,
)
from kvlockstep.bench.serving import bench_longest, bench_serving
from kvlockstep.impl.block_pool import BlockPool
from kvlockstep.impl.block_pool.free_queue import FreeQueue


def record(benchmark, speed):
    benchmark.extra_info.update(
        row=speed.row, unit=speed.unit, ours=speed.ours, floor=speed.floor, ratio=speed.ratio, goal=speed.goal
    )


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("what", ["queue", "pool"])
def test_churn(benchmark, what, batch):
    if what == "queue":
        queue = FreeQueue(BLOCKS, range(BLOCKS))
        turn = churn(queue.pop, queue.append, batch)
    else:
        pool = BlockPool(BLOCKS, BLOCK_SIZE)
        turn = churn(pool.allocate, pool.free, batch)
    benchmark.pedantic(turn, rounds=30, iterations=max(1, 256 // batch))
    speeds = [speed for speed in bench_churn(FreeQueue, BlockPool, rounds=20) if speed.row.endswith(f" {batch}")]
    speed = speeds[what == "pool"]
    record(benchmark, speed)
    benchmark.extra_info["blocks per round"] = RING * batch


def test_removal_from_the_middle_does_not_depend_on_the_queue(benchmark):
    queue = FreeQueue(BLOCKS, range(BLOCKS))
    some = list(range(BLOCKS // 2, BLOCKS // 2 + 16))

    def again():
        queue.remove(some)
        queue.append(some)

    benchmark.pedantic(again, rounds=30, iterations=100)
    (speed,) = bench_removal(FreeQueue)
    record(benchmark, speed)


def test_keys(benchmark):
    pytest.importorskip("xxhash", reason="its chain is the floor")
    pool, tokens = BlockPool(BLOCKS, BLOCK_SIZE), prompt()

    def whole():
        keys = pool.request_keys()
        keys.extend(tokens)
        return keys.hashes

    assert len(benchmark(whole)) == PROMPT // BLOCK_SIZE
    speed, *others = bench_keys(BlockPool, rounds=20)
    record(benchmark, speed)
    benchmark.extra_info.update({other.row: other.ours for other in others})


def test_a_server_s_steady_state():
    rows = {speed.row: speed for speed in bench_serving(BlockPool, 2_000, rounds=2)}
    assert len(rows) == 3
    assert all(speed.ours > 0 for speed in rows.values())


def test_longest_calls():
    rows = bench_longest(FreeQueue, BlockPool, 20_000)
    assert len(rows) == 4
    assert all(speed.worst > 0 for speed in rows)
