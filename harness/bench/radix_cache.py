"""Speed of a radix_cache: longest-prefix match, insert, eviction, a chat workload; floors and peers of the same run.

Tokens are array("q"), as SGLang's requests have them; slots are those that the cache handed out.
"""

from __future__ import annotations

import random
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
from statistics import median
from typing import Any

import numpy as np

from kvlockstep.bench.peers import sglang_tree
from kvlockstep.bench.timing import Speed, cpu_best_of, no_gc
from kvlockstep.runs.chat import Chats

Factory = Callable[[int, int], Any]

SYSTEM = 8 * 1024
PROMPT = 32 * 1024
RUST = "SGLang, Rust core"
POOL = 25_600
IN_FLIGHT = 4


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
        whole, half, floor = [1e6 * t / some / (PROMPT / 1000) for t in cpu_best_of(calls, rounds, 16 // some)]
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
    tree = peer_tree(0)
    if tree is not None:
        tree.insert(tree.key(array("q", data)), tree.slots(half))
    ours, floor, peer = [], [], []
    with no_gc():
        for _ in range(rounds):
            tokens = array("q", np.concatenate((head, numbers.integers(0, 128_000, half))).tobytes())
            slots = np.concatenate((head_slots, cache.allocate(half)))
            start = time.process_time()
            already = cache.insert_prefix(tokens, slots)
            ours.append(time.process_time() - start)
            assert already == half
            start = time.process_time()
            _ = data == other, bytes(memoryview(data)), slots32.copy()
            floor.append(time.process_time() - start)
            if tree is not None:
                key, values = tree.key(tokens), tree.slots(2 * half)
                start = time.process_time()
                already = tree.insert(key, values)
                peer.append(time.process_time() - start)
                assert already == half
    peers = {RUST: 1e6 * median(peer)} if peer else {}
    return Speed("d insert 4k, 2k cached", "us", 1e6 * median(ours), 1e6 * median(floor), 0.0, peers=peers)


def peer_tree(tokens: int) -> Any:
    """SGLang's tree over so many tokens, or alone if that is 0; None where SGLang is not."""
    make = sglang_tree()
    return None if make is None else make(tokens)


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
            start = time.process_time()
            cache.evict(1)
            times.append(time.process_time() - start)
    rows.append(Speed("e evict one token, 100,000 leaves", "us", 1e6 * median(times), 0.0, 5.0))
    return rows


def evict_time(factory: Factory, leaves: int, size: int) -> float:
    """Seconds per token of evicting a tenth of the cache in one call."""
    cache = leafy_cache(factory, leaves, size)
    tokens = leaves * size // 10
    with no_gc():
        start = time.process_time()
        cache.evict(tokens)
        return (time.process_time() - start) / tokens


def leafy_cache(factory: Factory, leaves: int, size: int) -> Any:
    """A cache full of sequences of `size` tokens that share nothing."""
    cache = factory(leaves * size, 1)
    for first in range(0, leaves * size, size):
        cache.insert_prefix(np.arange(first, first + size), cache.allocate(size))
    return cache


def bench_deep(factory: Factory, rounds: int = 15) -> list[Speed]:
    """Nested prefixes of 16 tokens a node: match, lock and unlock per node; floor: at depth 200.

    They were cached as one and then matched one by one, the longest first, so that every match splits.
    """
    rows = []
    shallow = deep_times(factory, 200, rounds)
    for depth in (200, 2_000, 10_000):
        times = deep_times(factory, depth, rounds)
        peers = {RUST: times[2]} if times[2] else {}
        rows.append(
            Speed(f"deep match, {depth:,} nested prefixes", "us per node", times[0], shallow[0], 1.5, peers=peers)
        )
        if depth == 2_000:
            row = f"deep lock and unlock, {depth:,} nested prefixes"
            rows.append(Speed(row, "us per node", times[1], shallow[1], 1.5))
    return rows


def deep_times(factory: Factory, depth: int, rounds: int, size: int = 16) -> list[float]:
    """Microseconds per node of a match, of a lock with its unlock, and of SGLang's match (0 where it is not)."""
    cache, tree = factory(depth * size, 1), peer_tree(0)
    tokens = array("q", range(depth * size))
    cache.insert_prefix(tokens, cache.allocate(depth * size))
    if tree is not None:
        tree.insert(tree.key(tokens), tree.slots(depth * size))
    for end in range((depth - 1) * size, 0, -size):
        cache.match_prefix(tokens[:end])
        if tree is not None:
            tree.match(tree.key(tokens[:end]))
    handle = cache.match_prefix(tokens).handle

    def lock() -> None:
        cache.lock(handle)
        cache.unlock(handle)

    calls: list[Any] = [lambda: cache.match_prefix(tokens), lock]
    if tree is not None:
        key = tree.key(tokens)
        calls.append(lambda: tree.match(key))
    times = [1e6 * t / depth for t in cpu_best_of(calls, rounds, max(1, 2_000 // depth))]
    return times if tree is not None else [*times, 0.0]


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

    An answer gets slots and is cached when its request ends, as an engine does. The floor of the hit rate is that of
    exact LRU in the same flow.
    """
    requests = Conversations().prompts()
    ways: dict[str, Callable[[], Any]] = {
        "prompt cached at once": lambda: Server(factory(POOL, 1), publish=True),
        "cached when finished": lambda: Server(factory(POOL, 1), publish=False),
    }
    if sglang_tree() is not None:
        ways[RUST] = lambda: peer_tree(POOL)
    seconds = dict.fromkeys(ways, float("inf"))
    rates = dict.fromkeys(ways, 0.0)
    for _ in range(rounds):
        for how, make in ways.items():
            server = make()
            with no_gc():
                start = time.process_time()
                rates[how] = serve(server, requests)
                seconds[how] = min(seconds[how], time.process_time() - start)
    speed = {how: len(requests) / seconds[how] for how in ways}
    rows = []
    for how, publish in (("prompt cached at once", True), ("cached when finished", False)):
        exact = exact_lru(requests, POOL, publish)
        for what, unit, found, floor in (
            ("f chat", "requests per s", speed, 0.0),
            ("f chat hit rate", "of tokens", rates, exact),
        ):
            peers = {RUST: found[RUST]} if RUST in found else {}
            rows.append(Speed(f"{what}, {how}", unit, found[how], floor, 0.0, more_is_better=True, peers=peers))
    return rows


class Server:
    """A cache of ours as an engine's scheduler drives it.

    With `publish` a prompt is cached as soon as it is computed, so that one in flight can be hit, else when it ends.
    """

    def __init__(self, cache: Any, publish: bool) -> None:
        self._cache = cache
        self._publish = publish

    def start(self, prompt: array[int]) -> tuple[Any, int]:
        """Matches and locks a prompt, gives it slots and computes it: the request, and the length that hit."""
        cache = self._cache
        match = cache.match_request(prompt)
        handle, hit = match.handle, match.length
        cache.lock(handle)
        slots = np.concatenate((match.slots, cache.allocate(len(prompt) - hit)))
        if self._publish:
            match = cache.cache_unfinished(handle, prompt, slots)
            handle = match.handle
            slots[: match.length] = match.slots
        return (handle, slots), hit

    def finish(self, request: Any, full: array[int]) -> None:
        """Gives slots to the answer and caches the whole request."""
        handle, slots = request
        more = self._cache.allocate(len(full) - len(slots))
        self._cache.cache_finished(handle, full, np.concatenate((slots, more)))


def serve(server: Any, requests: list[tuple[array[int], array[int]]], in_flight: int = IN_FLIGHT) -> float:
    """Runs the requests, each finished when `in_flight` later ones have started; the share of prompt tokens hit."""
    flying: deque[tuple[Any, array[int]]] = deque()
    hit = asked = 0
    for prompt, full in requests:
        if len(flying) == in_flight:
            server.finish(*flying.popleft())
        request, length = server.start(prompt)
        hit += length
        asked += len(prompt)
        flying.append((request, full))
    while flying:
        server.finish(*flying.popleft())
    return hit / asked


def exact_lru(requests: list[tuple[array[int], array[int]]], capacity: int, publish: bool = True) -> float:
    """The share of prompt tokens that hit if the least recently used token goes first, in the flow of `serve`."""
    server = ExactLRU(capacity, publish)
    return serve(server, requests)


class ExactLRU:
    """Tokens by their whole prefix, the least recently used first; the rest of a request in flight has no key yet."""

    def __init__(self, capacity: int, publish: bool) -> None:
        self._capacity = capacity
        self._publish = publish
        self._order: OrderedDict[int, None] = OrderedDict()
        self._locks: dict[int, int] = {}
        self._private = 0

    def start(self, prompt: array[int]) -> tuple[Any, int]:
        """The request, and the length that hit."""
        keys = prefixes_of(prompt)
        hit = next((i for i, key in enumerate(keys[:-1]) if key not in self._order), len(prompt) - 1)
        held = keys if self._publish else keys[:hit]
        for key in held:
            self._locks[key] = self._locks.get(key, 0) + 1
        self._private += len(keys) - len(held)
        self._use(held)
        return (held, len(keys) - len(held)), hit

    def finish(self, request: Any, full: array[int]) -> None:
        """Caches the whole request."""
        held, private = request
        self._private -= private
        for key in held:
            self._locks[key] -= 1
        self._use(prefixes_of(full))

    def _use(self, keys: list[int]) -> None:
        for key in reversed(keys):
            self._order.pop(key, None)
            self._order[key] = None
        excess = len(self._order) + self._private - self._capacity
        free = (key for key in self._order if not self._locks.get(key))
        for key in list(islice(free, max(0, excess))):
            del self._order[key]


def prefixes_of(tokens: array[int]) -> list[int]:
    """A key for each prefix of the tokens."""
    return list(accumulate(tokens, lambda key, token: hash((key, token)), initial=0))[1:]
