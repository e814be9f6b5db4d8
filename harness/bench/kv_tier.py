"""Speed of a kv_tier: stores that evict, and loads of what is there, per chunk.

The floor is an OrderedDict that does no more than keep an order. The peers are vLLM's manager under the same policy and
LMCache's CPU backend under LRU, each called as its engine calls it, with keys that are made beforehand. All take turns,
and the median of CPU time counts. LMCache's backend also takes memory for each chunk; the others leave that to callers.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kvlockstep.bench.timing import Speed, cpu_medians
from kvlockstep.reference.kv_tier.contract import Key

UNITS = 10_000
BATCH = 16
ROUNDS = 15
# So many runs of BATCH chunks each turn, of which a full tier evicts as many.
RUNS = 64
# So many other keys come by before one comes back, so that each is a miss by then.
KEYS = 4 * UNITS


class Work(NamedTuple):
    """The two calls that are timed: `store` of a run of chunks, evicting as many, and `load` of one that is there."""

    store: Callable[[Sequence[Any]], None]
    load: Callable[[Sequence[Any]], None]
    keys: list[Any]


def bench_tiers(tiers: Mapping[str, Any], peers: Mapping[str, Mapping[str, Any]]) -> list[Speed]:
    """Rows for each tier, beside the adapters of peers under the same name: "vLLM" and "LMCache" to factory."""
    keys = [Key(n) for n in range(KEYS)]
    rows = []
    for name, make in tiers.items():
        works = [tier_work(make(UNITS), keys), dict_work(keys)]
        beside = peers.get(name, {})
        works += [WORKS[peer](factory(UNITS), keys) for peer, factory in beside.items()]
        for what in ("store", "load"):
            times = cpu_medians([turn(getattr(work, what), work) for work in works], ROUNDS)
            ours, floor, *others = (1e9 * seconds / (RUNS * BATCH) for seconds in times)
            row = f"{what}, {name}, runs of {BATCH}"
            rows.append(Speed(row, "ns per chunk", ours, floor, 0.0, peers=dict(zip(beside, others, strict=True))))
    return rows


def turn(call: Callable[[Sequence[Any]], None], work: Work) -> Callable[[], None]:
    """A call for RUNS runs of keys, on a tier that is full."""
    runs = [work.keys[i : i + BATCH] for i in range(0, KEYS, BATCH)]
    for run in runs[: UNITS // BATCH]:
        work.store(run)
    rotation = itertools.cycle(runs[UNITS // BATCH :] + runs[: UNITS // BATCH])
    there = runs[UNITS // BATCH - RUNS : UNITS // BATCH]

    def timed() -> None:
        for run in there if call is work.load else [next(rotation) for _ in range(RUNS)]:
            call(run)

    return timed


def tier_work(tier: Any, keys: list[Key]) -> Work:
    """A target of kv_tier."""

    def store(run: Sequence[Key]) -> None:
        tier.complete(tier.store(run, "a").id, True)
        tier.release("a")
        tier.events()

    def load(run: Sequence[Key]) -> None:
        for key in run:
            tier.lookup(key, "a")
        tier.complete(tier.load(run, "a").id, True)
        tier.release("a")

    return Work(store, load, keys)


def vllm_work(adapter: Any, keys: Sequence[Key]) -> Work:
    """The manager below the adapter of vLLM, without the adapter. Each run is a request, as it is for ours."""
    manager = adapter.manager
    offloaded, _ = adapter.named(keys, "keys")

    def begin(run: Sequence[Any]) -> Any:
        context = adapter.context("a")
        for position, key in enumerate(run):
            context.set_offload_key_position(key, position)
        return context

    def store(run: Sequence[Any]) -> None:
        context = begin(run)
        output = manager.prepare_store(run, context)
        manager.complete_store(output.keys_to_store, context)
        adapter.release("a")
        list(manager.take_events())

    def load(run: Sequence[Any]) -> None:
        context = begin(run)
        for key in run:
            manager.lookup(key, context)
        manager.touch(run, context)
        manager.prepare_load(run, context)
        manager.complete_load(run, context)
        adapter.release("a")

    return Work(store, load, offloaded)


def lmcache_work(adapter: Any, keys: Sequence[Key]) -> Work:
    """The backend below the adapter of LMCache, without the adapter. A load pins what it looks up, and unpins it."""
    backend, (shape, dtype) = adapter.backend, adapter.chunk

    def store(run: Sequence[Any]) -> None:
        chunks = [backend.allocate(shape, dtype, busy_loop=False) for _ in run]
        backend.batched_submit_put_task(run, chunks)
        for chunk in chunks:
            chunk.ref_count_down()

    def load(run: Sequence[Any]) -> None:
        for key in run:
            backend.contains(key, pin=True)
        backend.touch_cache()
        for chunk in [backend.get_blocking(key) for key in run]:
            chunk.ref_count_down()
        for key in run:
            backend.unpin(key)

    return Work(store, load, [adapter.key(key) for key in keys])


def dict_work(keys: list[Key]) -> Work:
    """An order and nothing else: no plans, no pins, no units."""
    order: OrderedDict[Key, int] = OrderedDict()

    def store(run: Sequence[Key]) -> None:
        for key in run:
            if key not in order:
                if len(order) >= UNITS:
                    order.popitem(last=False)
                order[key] = 1

    def load(run: Sequence[Key]) -> None:
        for key in run:
            if key in order:
                order.move_to_end(key)

    return Work(store, load, keys)


WORKS: dict[str, Callable[[Any, list[Key]], Work]] = {"vLLM": vllm_work, "LMCache": lmcache_work}
