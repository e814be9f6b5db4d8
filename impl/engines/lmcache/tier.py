"""kv_tier on LMCache's LocalCPUBackend, with the policies LRU, LFU, MRU and FIFO.

Read from lmcache/v1/storage_backend/local_cpu_backend.py and its callers, v1/storage_backend/storage_manager.py and
v1/cache_engine.py. Real are the backend, its policies, the allocator and the memory objects with their references and
pins. Stubs stand for metrics and the pin monitor, which only looks at the clock.

The backend's calls return at once, so the plans are kept here, one to one with its references: a store allocates, and
puts when it is completed; a load gets, and drops its references when it is completed. A chunk's extra key is a tag of
its key. The backend does not know what is being stored and would store it twice; those keys are left out here. It makes
room with any chunk that is idle, also with one that is offered, and chunk by chunk, so that a refused store may have
evicted some.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple

import torch

from kvlockstep.impl.engines.loading import find, without_the_rest
from kvlockstep.reference.kv_tier.contract import HIT, MISS, Key, LoadPlan, StorePlan

GET = "pip download --no-deps lmcache==0.5.6, and unpack it"
BARE = ("lmcache.v1.storage_backend", "lmcache.integration", "lmcache.integration.vllm")
STUBS = ("lmcache.integration.vllm.utils", "lmcache.observability", "numba")

# Its loggers have handlers of their own, with this level.
os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")
ENGINE = find("lmcache", "v1/storage_backend/local_cpu_backend.py", GET)

# One chunk fills one unit: the allocator aligns to 4096 bytes.
UNIT = 4096
SHAPE, DTYPE = torch.Size([2, 1, 1024, 1]), torch.float16


def load_module(name: str) -> Any:
    """A module of LMCache."""
    return importlib.import_module(f"lmcache.{name}")


class _Nothing:
    """A monitor that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


with without_the_rest(ENGINE, BARE, STUBS):
    load_module("observability").LMCStatsMonitor.GetOrCreate = _Nothing
    backend = load_module("v1.storage_backend.local_cpu_backend")
    config = load_module("v1.config")
    allocators = load_module("v1.memory_allocators.host_memory_allocator")
    utils = load_module("utils")
    load_module("v1.pin_monitor").PinMonitor.GetOrCreate = lambda *_, **__: _Nothing()


class Job(NamedTuple):
    """A plan in flight: its memory objects, each with a reference that the plan holds, and the keys it has pinned."""

    objects: dict[Key, Any]
    loads: bool
    pinned: frozenset[Key]


class LMCacheTier:
    """A backend with memory for `units` chunks, under a policy of LMCache."""

    engine = "lmcache"
    version = ENGINE.version
    extra_key = can_pin = refusal_evicts = True
    pending_visible = spares_offered = False
    chunk = SHAPE, DTYPE

    def __init__(self, units: int, policy: str = "LRU") -> None:
        self.total = units
        self._memory = allocators.HostMemoryAllocator(units * UNIT)
        made = config.LMCacheEngineConfig.from_defaults(local_cpu=True, cache_policy=policy)
        self.backend = backend.LocalCPUBackend(made, None, "cpu", None, self._memory)
        self._jobs: dict[Hashable, Job] = {}
        self._pins: dict[str, set[Key]] = {}
        self._names: dict[Any, Key] = {}
        self._ids = itertools.count()

    def lookup(self, key: Key, owner: str) -> Literal["miss", "hit"]:
        return HIT if self.backend.contains(self.key(key)) else MISS

    def pin(self, key: Key, owner: str) -> Literal["miss", "hit"]:
        pins = self._pins.setdefault(owner, set())
        # The backend counts pins, and whoever looks up twice has to unpin twice.
        if not self.backend.contains(self.key(key), pin=key not in pins):
            return MISS
        pins.add(key)
        return HIT

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        before = list(self.backend.hot_cache)
        storing = {key for job in self._jobs.values() if not job.loads for key in job.objects}
        objects: dict[Key, Any] = {}
        for key in keys:
            if key in storing or self.backend.contains(self.key(key)):
                continue
            chunk = self.backend.allocate(SHAPE, DTYPE, busy_loop=False)
            if chunk is None:
                for taken in objects.values():
                    taken.ref_count_down()
                return None
            objects[key] = chunk
        plan = self._begin(Job(objects, loads=False, pinned=frozenset()))
        evicted = [self._names[key] for key in before if key not in self.backend.hot_cache]
        return StorePlan(plan, units_of(objects), evicted)

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        objects = {key: self.backend.get_blocking(self.key(key)) for key in keys}
        pins = self._pins.get(owner, set())
        taken_over = frozenset(pins.intersection(keys))
        pins -= taken_over
        return LoadPlan(self._begin(Job(objects, loads=True, pinned=taken_over)), units_of(objects))

    def complete(self, plan: Hashable, ok: bool) -> None:
        job = self._jobs.pop(plan, None)
        if job is None:
            return
        for key, chunk in job.objects.items():
            if not job.loads and ok:
                self.backend.submit_put_task(self.key(key), chunk)
            chunk.ref_count_down()
        for key in job.pinned:
            self.backend.unpin(self.key(key))

    def touch(self, keys: Sequence[Key]) -> None:
        for key in map(self.key, keys):
            if self.backend.contains(key):
                self.backend.cache_policy.update_on_hit(key, self.backend.hot_cache)

    def release(self, owner: str) -> None:
        for key in self._pins.pop(owner, ()):
            self.backend.unpin(self.key(key))

    def avail(self) -> int:
        return len(self.free_units()) + sum(bool(chunk.can_evict) for chunk in self.backend.hot_cache.values())

    def free_units(self) -> list[int]:
        blocks = self._memory.allocator.address_manager._explicit_list
        return [unit for block in blocks for unit in range(block.start // UNIT, (block.start + block.size) // UNIT)]

    def _begin(self, job: Job) -> int:
        plan = next(self._ids)
        self._jobs[plan] = job
        return plan

    def key(self, key: Key) -> Any:
        """The backend's key of a chunk."""
        tags = {} if key.extra_key is None else {"lmcache.tag.adapter": str(key.extra_key)}
        named = utils.CacheEngineKey("model", 1, 0, key.hash, DTYPE, tags)
        self._names[named] = key
        return named


def units_of(objects: dict[Key, Any]) -> dict[Key, int]:
    """The unit of each memory object."""
    return {key: chunk.meta.address // UNIT for key, chunk in objects.items()}


def make_lfu(units: int) -> LMCacheTier:
    """The backend under LFU."""
    return LMCacheTier(units, "LFU")


def make_mru(units: int) -> LMCacheTier:
    """The backend under MRU."""
    return LMCacheTier(units, "MRU")


def make_fifo(units: int) -> LMCacheTier:
    """The backend under FIFO."""
    return LMCacheTier(units, "FIFO")
