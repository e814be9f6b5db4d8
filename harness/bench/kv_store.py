"""Speed of a kv_store: a prefix of 67 MB copied between neighbouring or scattered blocks; floor: copy_ of the bytes."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from kvlockstep.bench.timing import Call, Speed, no_gc
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv_store import LAYOUTS

SHAPE = KVShape(16, 8, 128, "bfloat16")
TOKENS = 1024
BLOCK_SIZE = 16
GOALS = {"contiguous": 1.1, "scattered": 1.5}
ROUNDS = 25

Factory = Callable[..., Any]


def bench_prefix_copy(factory: Factory, threads: Sequence[int] = (1, 2), rounds: int = ROUNDS) -> list[Speed]:
    """g: copy_prefix in both layouts, for a factory of stores."""
    rows = []
    for layout in LAYOUTS:
        calls: dict[str, Call] = {"floor": flat_copy(), **prefix_copies(factory, layout)}
        for count in threads:
            with torch_threads(count):
                ms = in_turn(calls, rounds)
            rows += [
                Speed(f"g prefix copy, {kind}, {layout}, {count} threads", "ms", ms[kind], ms["floor"], goal)
                for kind, goal in GOALS.items()
            ]
    return rows


@dataclass(frozen=True)
class PrefixCopy:
    """A copy of a prefix from the blocks of one table of a store to those of another."""

    store: Any
    source: list[int]
    target: list[int]

    def __call__(self) -> None:
        self.store.copy_prefix(self.source, self.target, TOKENS)

    def arrived(self) -> bool:
        """True if K and V of all layers are in the target, bit for bit."""
        planes = [plane(layer) for layer in range(SHAPE.layers) for plane in (self.store.keys, self.store.values)]
        bits = [plane.view(torch.int16) for plane in planes]
        return all(torch.equal(plane[self.source], plane[self.target]) for plane in bits)


def prefix_copies(factory: Factory, layout: str) -> dict[str, PrefixCopy]:
    """The copies of a prefix into neighbouring blocks, and from scattered blocks into scattered ones."""
    needed = TOKENS // BLOCK_SIZE
    store = factory(3 * needed, BLOCK_SIZE, 0, SHAPE, layout)
    store.kv.view(torch.int16).random_(0, 1 << 15)
    blocks = list(range(3 * needed))
    scattered = random.Random(7).sample(blocks, 2 * needed)
    return {
        "contiguous": PrefixCopy(store, blocks[:needed], blocks[needed : 2 * needed]),
        "scattered": PrefixCopy(store, scattered[:needed], scattered[needed:]),
    }


def flat_copy() -> Call:
    """The floor: one copy_ between two contiguous tensors of the prefix's bytes."""
    elements = TOKENS * SHAPE.token_bytes // SHAPE.item_bytes
    source = torch.ones(elements, dtype=torch.bfloat16)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


def in_turn(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Median ms of each call, all of them called in every round, after two rounds that do not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    with no_gc():
        for i in range(rounds + 2):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                if i >= 2:
                    times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(taken) for name, taken in times.items()}


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """torch works with so many threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
