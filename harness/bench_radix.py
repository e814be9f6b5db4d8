"""Speed of a radix_cache: longest-prefix match, insert, eviction and a chat workload, floors measured in the same run."""

from __future__ import annotations

import gc
import random
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

Factory = Callable[[int, int], Any]
Call = Callable[[], Any]

SYSTEM = 8 * 1024
PROMPT = 32 * 1024


@dataclass(frozen=True)
class Speed:
    """A figure in `unit`, the floor measured beside it (0 if there is none), and the goal for their ratio or the figure."""

    row: str
    unit: str
    ours: float
    floor: float
    goal: float

    @property
    def ratio(self) -> float:
        """Ours in floors; 0 without a floor."""
        return self.ours / self.floor if self.floor else 0.0


def bench_radix(factory: Factory) -> list[Speed]:
    """Rows c to f of the table of peers."""
    return [*bench_match(factory), bench_insert(factory), *bench_evict(factory), *bench_chat(factory)]


def bench_match(factory: Factory, prompts: int = 1000, rounds: int = 40) -> list[Speed]:
    """c: longest-prefix match of 32k tokens, slots gathered, among prompts that share an 8k system prompt."""
    cache, cached, diverging = match_workload(factory, prompts)
    data, twin = cached.tobytes(), bytearray(cached.tobytes())
    other = bytes(twin)
    calls: list[Call] = [lambda: cache.match_prefix(cached), lambda: cache.match_prefix(diverging), lambda: data == other]
    whole, half, floor = [1e9 * t / PROMPT for t in best_of(calls, rounds, 20)]
    unit = "ns per token"
    return [
        Speed("c match 32k, fully cached", unit, whole, floor, 2.4),
        Speed("c match 32k, diverges half-way", unit, half, floor, 2.4),
    ]


def match_workload(factory: Factory, prompts: int) -> tuple[Any, array[int], array[int]]:
    """A cache of so many prompts of 32k tokens behind one system prompt; one of them, and one that leaves it half-way."""
    tail = PROMPT - SYSTEM
    cache = factory(SYSTEM + prompts * tail, 1)
    numbers = np.random.default_rng(7)
    system = numbers.integers(0, 128_000, SYSTEM)
    cached = np.empty(0, np.int64)
    shared = np.asarray(cache.allocate(SYSTEM))
    for _ in range(prompts):
        cached = np.concatenate((system, numbers.integers(0, 128_000, tail)))
        cache.insert_prefix(cached, np.concatenate((shared, cache.allocate(tail))))
    diverging = cached.copy()
    diverging[PROMPT // 2 :] += 1
    return cache, array("q", cached.tobytes()), array("q", diverging.tobytes())


def bench_insert(factory: Factory, rounds: int = 300) -> Speed:
    """d: insert of 4k tokens whose first 2k are cached, each time others behind them. Floor: compare and copy those."""
    half = 2048
    cache = factory(half * (rounds + 1), 1)
    numbers = np.random.default_rng(7)
    head = numbers.integers(0, 128_000, half)
    head_slots = np.asarray(cache.allocate(half))
    cache.insert_prefix(head, head_slots)
    data, other, slots32 = head.tobytes(), bytes(bytearray(head.tobytes())), head_slots.astype(np.int32)
    ours, floor = [], []
    with no_gc():
        for _ in range(rounds):
            tokens = array("q", np.concatenate((head, numbers.integers(0, 128_000, half))).tobytes())
            slots = np.concatenate((head_slots, cache.allocate(half)))
            start = time.perf_counter()
            already = cache.insert_prefix(tokens, slots)
            ours.append(time.perf_counter() - start)
            assert already == half
            start = time.perf_counter()
            _ = data == other, bytes(memoryview(data)), slots32.copy()
            floor.append(time.perf_counter() - start)
    return Speed("d insert 4k, 2k cached", "us", 1e6 * middle(ours), 1e6 * middle(floor), 18.0)


def bench_evict(factory: Factory, rounds: int = 5) -> list[Speed]:
    """e: eviction of a tenth, per token, and of one token; the floor is the same leaf size with 1,000 leaves."""
    rows = []
    few = min(evict_time(factory, 1_000, 1) for _ in range(20 * rounds))
    for leaves, size in ((1_000, 100), (10_000, 10), (100_000, 1)):
        ours = min(evict_time(factory, leaves, size) for _ in range(rounds))
        base = few if size == 1 else min(evict_time(factory, 1_000, size) for _ in range(rounds))
        rows.append(Speed(f"e evict 10%, {leaves:,} leaves of {size}", "us per token", 1e6 * ours, 1e6 * base, 1.5))
    cache = leafy_cache(factory, 100_000, 1)
    times = []
    with no_gc():
        for _ in range(2_000):
            start = time.perf_counter()
            cache.evict(1)
            times.append(time.perf_counter() - start)
    rows.append(Speed("e evict one token, 100,000 leaves", "us", 1e6 * middle(times), 0.0, 5.0))
    return rows


def evict_time(factory: Factory, leaves: int, size: int) -> float:
    """Seconds per token of evicting a tenth of the cache in one call."""
    cache = leafy_cache(factory, leaves, size)
    tokens = leaves * size // 10
    with no_gc():
        start = time.perf_counter()
        cache.evict(tokens)
        return (time.perf_counter() - start) / tokens


def leafy_cache(factory: Factory, leaves: int, size: int) -> Any:
    """A cache full of sequences of `size` tokens that share nothing."""
    cache = factory(leaves * size, 1)
    for first in range(0, leaves * size, size):
        cache.insert_prefix(np.arange(first, first + size), cache.allocate(size))
    return cache


@dataclass(frozen=True)
class Chat:
    """Conversations of `turns` turns behind one system prompt; users by popularity 1 / rank**0.8."""

    requests: int = 2_000
    users: int = 64
    system: int = 512
    turns: int = 8
    asked: int = 120
    generated: int = 80
    seed: int = 7

    def prompts(self) -> list[tuple[array[int], array[int]]]:
        """Per request its prompt, and the prompt with what is generated."""
        rng = random.Random(self.seed)
        system = [rng.randrange(128_000) for _ in range(self.system)]
        histories: list[list[int]] = [[] for _ in range(self.users)]
        weights = [1 / rank**0.8 for rank in range(1, self.users + 1)]
        made = []
        for user in rng.choices(range(self.users), weights, k=self.requests):
            history = histories[user]
            if len(history) == self.turns * (self.asked + self.generated):
                history.clear()
            history += [rng.randrange(128_000) for _ in range(self.asked)]
            prompt = array("q", system + history)
            history += [rng.randrange(128_000) for _ in range(self.generated)]
            made.append((prompt, array("q", system + history)))
        return made


def bench_chat(factory: Factory, rounds: int = 5) -> list[Speed]:
    """f: 2,000 requests of chats on a pool of 25,600 tokens, 4 in flight; requests per second, and hit rate in tokens."""
    requests = Chat().prompts()
    best, rate = 0.0, 0.0
    for _ in range(rounds):
        cache = factory(25_600, 1)
        with no_gc():
            start = time.perf_counter()
            rate = serve(cache, requests, 4)
            best = max(best, len(requests) / (time.perf_counter() - start))
    everything = serve(factory(sum(len(full) for _, full in requests), 1), requests, 4)
    return [
        Speed("f chat", "requests per s", best, 0.0, 15_000.0),
        Speed("f chat hit rate (floor: of an infinite cache)", "of tokens", rate, everything, 0.712),
    ]


def serve(cache: Any, requests: list[tuple[array[int], array[int]]], in_flight: int, publish: bool = False) -> float:
    """Runs the requests, each finished when `in_flight` later ones have started; the share of prompt tokens that hit.

    With `publish` the prompt is cached as soon as it is computed, not only with the end of the request.
    """
    flying: deque[tuple[Any, array[int], Any]] = deque()
    hit = asked = 0
    for prompt, full in requests:
        if len(flying) == in_flight:
            cache.cache_finished(*flying.popleft())
        match = cache.match_request(prompt)
        handle = match.handle
        cache.lock(handle)
        slots = np.concatenate((match.slots, cache.allocate(len(full) - match.length)))
        hit += match.length
        asked += len(prompt)
        if publish:
            match = cache.cache_unfinished(handle, prompt, slots[: len(prompt)])
            handle = match.handle
            slots[: match.length] = match.slots
        flying.append((handle, full, slots))
    while flying:
        cache.cache_finished(*flying.popleft())
    return hit / asked


def best_of(calls: list[Call], rounds: int, repeats: int) -> list[float]:
    """Seconds per call: the best round of each, the calls in turn within a round."""
    best = [float("inf")] * len(calls)
    with no_gc():
        for _ in range(rounds):
            for i, call in enumerate(calls):
                start = time.perf_counter()
                for _ in range(repeats):
                    call()
                best[i] = min(best[i], (time.perf_counter() - start) / repeats)
    return best


def middle(times: list[float]) -> float:
    """The median."""
    return sorted(times)[len(times) // 2]


@contextmanager
def no_gc() -> Iterator[None]:
    """Cyclic garbage collection is off inside."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
