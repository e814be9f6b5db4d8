"""Speed of a radix_cache: longest-prefix match, insert, eviction, a chat workload; floors measured in the same run."""

from __future__ import annotations

import random
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from statistics import median
from typing import Any

import numpy as np

from kvlockstep.bench.timing import Speed, best_of, no_gc
from kvlockstep.runs.chat import Chats

Factory = Callable[[int, int], Any]

SYSTEM = 8 * 1024
PROMPT = 32 * 1024


def bench_radix(factory: Factory) -> list[Speed]:
    """Rows c to f of the table of peers, and deep chains."""
    rows = [*bench_match(factory), bench_insert(factory), *bench_evict(factory)]
    return [*rows, *bench_deep(factory), *bench_chat(factory)]


def bench_match(factory: Factory, prompts: int = 1000, rounds: int = 60) -> list[Speed]:
    """c: longest-prefix match of 32k tokens, slots gathered, among prompts that share an 8k system prompt.

    Eight prompts in turn, as they come in a server, and one prompt again and again: then a bare comparison finds both
    sides in the cache next to the core, where the slots to be gathered do not fit in beside them.
    """
    cache, cached = match_workload(factory, prompts)
    diverging = [half_other(tokens) for tokens in cached]
    rows = []
    for how, some in (("in turn", 8), ("one again and again", 1)):
        data = [tokens.tobytes() for tokens in cached[:some]]
        pairs = [(one, bytes(bytearray(one))) for one in data]
        calls = [
            partial(_each, cache.match_prefix, cached[:some]),
            partial(_each, cache.match_prefix, diverging[:some]),
            partial(_each, _equal, pairs),
        ]
        whole, half, floor = [1e6 * t / some / (PROMPT / 1000) for t in best_of(calls, rounds, 16 // some)]
        rows.append(Speed(f"c match 32k, fully cached, {how}", "us per 1k tokens", whole, floor, 2.4))
        rows.append(Speed(f"c match 32k, diverges half-way, {how}", "us per 1k tokens", half, floor, 2.4))
    return rows


def _each(call: Callable[[Any], Any], arguments: list[Any]) -> None:
    for argument in arguments:
        call(argument)


def _equal(pair: tuple[bytes, bytes]) -> bool:
    return pair[0] == pair[1]


def match_workload(factory: Factory, prompts: int) -> tuple[Any, list[array[int]]]:
    """A cache of so many prompts of 32k tokens behind one system prompt, and eight of them."""
    tail = PROMPT - SYSTEM
    cache = factory(SYSTEM + prompts * tail, 1)
    numbers = np.random.default_rng(7)
    system = numbers.integers(0, 128_000, SYSTEM)
    shared = np.asarray(cache.allocate(SYSTEM))
    cached = []
    for i in range(prompts):
        tokens = np.concatenate((system, numbers.integers(0, 128_000, tail)))
        cache.insert_prefix(tokens, np.concatenate((shared, cache.allocate(tail))))
        if i % max(1, prompts // 8) == 0:
            cached.append(array("q", tokens.tobytes()))
    return cache, cached[:8]


def half_other(tokens: array[int]) -> array[int]:
    """A prompt that leaves the given one half-way."""
    return tokens[: len(tokens) // 2] + array("q", [token + 1 for token in tokens[len(tokens) // 2 :]])


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
    return Speed("d insert 4k, 2k cached", "us", 1e6 * median(ours), 1e6 * median(floor), 0.0)


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
    rows.append(Speed("e evict one token, 100,000 leaves", "us", 1e6 * median(times), 0.0, 5.0))
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


def bench_deep(factory: Factory, rounds: int = 30) -> list[Speed]:
    """Nested prefixes of 16 tokens a node: match, lock and unlock per node at depth 2,000; floor: at depth 200."""
    rows = []
    for what, index in (("match", 0), ("lock and unlock", 1)):
        deep, shallow = (deep_times(factory, depth, rounds)[index] for depth in (2_000, 200))
        rows.append(Speed(f"deep {what}, 2,000 nested prefixes", "us per node", deep, shallow, 1.5))
    return rows


def deep_times(factory: Factory, depth: int, rounds: int, size: int = 16) -> list[float]:
    """Microseconds per node of a match, and of a lock with its unlock."""
    cache = factory(depth * size, 1)
    tokens = np.arange(depth * size)
    slots = np.asarray(cache.allocate(depth * size))
    for end in range(size, depth * size + 1, size):
        cache.insert_prefix(tokens[:end], slots[:end])
    handle = cache.match_prefix(tokens).handle

    def lock() -> None:
        cache.lock(handle)
        cache.unlock(handle)

    return [1e6 * t / depth for t in best_of([lambda: cache.match_prefix(tokens), lock], rounds, 1)]


@dataclass(frozen=True)
class Conversations:
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
        draw = random.Random(self.seed)
        chats = Chats(draw, users=self.users, system=self.system, vocabulary=128_000)
        made = []
        for user in draw.choices(range(self.users), chats.weights, k=self.requests):
            if chats.length(user) == self.turns * (self.asked + self.generated):
                chats.start_over(user)
            prompt, answer = chats.turn(user, self.asked, self.generated)
            made.append((array("q", prompt), array("q", prompt + answer)))
        return made


def bench_chat(factory: Factory, rounds: int = 5) -> list[Speed]:
    """f: 2,000 requests of chats on a pool of 25,600 tokens, 4 in flight; requests per second, and hit rate in tokens.

    The floor of the hit rate is that of exact LRU over tokens with nothing in flight.
    """
    requests = Conversations().prompts()
    rows = []
    for publish in (True, False):
        best, rate = 0.0, 0.0
        for _ in range(rounds):
            cache = factory(25_600, 1)
            with no_gc():
                start = time.perf_counter()
                rate = serve(cache, requests, 4, publish)
                best = max(best, len(requests) / (time.perf_counter() - start))
        how = "cached at once" if publish else "cached when finished"
        rows.append(Speed(f"f chat, {how}", "requests per s", best, 0.0, 15_000.0, more_is_better=True))
        rows.append(
            Speed(f"f chat hit rate, {how}", "of tokens", rate, exact_lru(requests, 25_600), 0.712, more_is_better=True)
        )
    return rows


def serve(cache: Any, requests: list[tuple[array[int], array[int]]], in_flight: int, publish: bool) -> float:
    """Runs the requests, each finished when `in_flight` later ones have started; the share of prompt tokens that hit.

    With `publish` a request is cached as soon as it is computed, so that one in flight can hit it, else when it ends.
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
            match = cache.cache_unfinished(handle, full, slots)
            handle = match.handle
            slots[: match.length] = match.slots
        flying.append((handle, full, slots))
    while flying:
        cache.cache_finished(*flying.popleft())
    return hit / asked


def exact_lru(requests: list[tuple[array[int], array[int]]], capacity: int) -> float:
    """The share of prompt tokens that hit if every request is cached at once and the least recent token goes first."""
    order: OrderedDict[int, None] = OrderedDict()
    hit = asked = 0
    for prompt, full in requests:
        keys = list(accumulate(full, lambda key, token: hash((key, token)), initial=0))[1:]
        found = next((i for i, key in enumerate(keys[: len(prompt) - 1]) if key not in order), len(prompt) - 1)
        hit += found
        asked += len(prompt)
        for key in reversed(keys):
            order.pop(key, None)
            order[key] = None
        while len(order) > capacity:
            order.popitem(last=False)
    return hit / asked
