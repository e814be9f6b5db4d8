"""Rows c to f, and deep chains. `extra_info` has the floor measured in the same run, and the ratio."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kvlockstep.bench.radix_cache import (
    POOL,
    PROMPT,
    Conversations,
    Server,
    bench_chat,
    bench_deep,
    bench_evict,
    bench_insert,
    bench_match,
    half_other,
    leafy_cache,
    match_workload,
    serve,
)
from kvlockstep.impl.radix_cache import RadixCache


def record(benchmark, speed):
    benchmark.extra_info.update(
        row=speed.row, unit=speed.unit, ours=speed.ours, floor=speed.floor, ratio=speed.ratio, goal=speed.goal
    )


@pytest.fixture(scope="module")
def thousand_prompts():
    return match_workload(RadixCache, 1_000)


@pytest.fixture(scope="module")
def match_speeds():
    return {speed.row: speed for speed in bench_match(RadixCache)}


@pytest.mark.parametrize("how", ["in turn", "one again and again"])
@pytest.mark.parametrize("what", ["fully cached", "diverges half-way"])
def test_match(benchmark, thousand_prompts, match_speeds, what, how):
    cache, cached = thousand_prompts
    prompts = cached if what == "fully cached" else [half_other(tokens) for tokens in cached]
    some = prompts if how == "in turn" else prompts[:1]
    expected = PROMPT if what == "fully cached" else PROMPT // 2

    def match():
        return [cache.match_prefix(tokens) for tokens in some]

    found = benchmark.pedantic(match, rounds=30, iterations=8 // len(some), warmup_rounds=1)
    assert {(match.length, len(match.slots)) for match in found} == {(expected, expected)}
    record(benchmark, match_speeds[f"c match 32k, {what}, {how}"])


def test_insert(benchmark):
    cache, half = RadixCache(400 * 2048, 1), 2048
    head, head_slots = np.arange(half), cache.allocate(half)
    cache.insert_prefix(head, head_slots)

    starts = itertools.count(half, half)

    def another():
        first = next(starts)
        tokens = np.concatenate((head, np.arange(first, first + half)))
        return (tokens, np.concatenate((head_slots, cache.allocate(half)))), {}

    assert benchmark.pedantic(cache.insert_prefix, setup=another, rounds=300) == half
    record(benchmark, bench_insert(RadixCache))


@pytest.fixture(scope="module")
def evict_speeds():
    return {speed.row: speed for speed in bench_evict(RadixCache)}


@pytest.mark.parametrize(("leaves", "size"), [(1_000, 100), (10_000, 10), (100_000, 1)])
def test_evict_a_tenth(benchmark, evict_speeds, leaves, size):
    tokens = leaves * size // 10

    def full():
        return (leafy_cache(RadixCache, leaves, size),), {}

    freed = benchmark.pedantic(lambda cache: cache.evict(tokens), setup=full, rounds=3)
    assert len(freed) == tokens
    record(benchmark, evict_speeds[f"e evict 10%, {leaves:,} leaves of {size}"])


def test_evict_one_token(benchmark, evict_speeds):
    cache = leafy_cache(RadixCache, 100_000, 1)
    assert len(benchmark.pedantic(cache.evict, args=(1,), rounds=2_000)) == 1
    record(benchmark, evict_speeds["e evict one token, 100,000 leaves"])


@pytest.mark.parametrize("what", ["match", "lock and unlock"])
def test_deep(benchmark, what):
    depth = 2_000
    cache = RadixCache(depth, 1)
    tokens, slots = np.arange(depth), cache.allocate(depth)
    for end in range(1, depth + 1):
        cache.insert_prefix(tokens[:end], slots[:end])
    handle = cache.match_prefix(tokens).handle

    def lock():
        cache.lock(handle)
        cache.unlock(handle)

    benchmark.pedantic(lock if what != "match" else lambda: cache.match_prefix(tokens), rounds=20, iterations=5)
    (speed,) = [speed for speed in bench_deep(RadixCache) if speed.row.startswith(f"deep {what}, {depth:,} ")]
    record(benchmark, speed)


@pytest.fixture(scope="module")
def chat_speeds():
    return {speed.row: speed for speed in bench_chat(RadixCache)}


@pytest.mark.parametrize("publish", [True, False])
def test_chat(benchmark, chat_speeds, publish):
    requests = Conversations().prompts()
    how = "prompt cached at once" if publish else "cached when finished"

    def fresh():
        return (Server(RadixCache(POOL, 1), publish), requests), {}

    hits = benchmark.pedantic(serve, setup=fresh, rounds=5)
    rate = chat_speeds[f"f chat hit rate, {how}"]
    assert hits == rate.ours
    assert abs(rate.ours - rate.floor) < 0.002
    record(benchmark, chat_speeds[f"f chat, {how}"])
    benchmark.extra_info.update({"hit rate": rate.ours, "hit rate of exact LRU": rate.floor})
