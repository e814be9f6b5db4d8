"""kv_tier on LMCache's StorageManager with its LocalDiskBackend: chunks on disk, and CPU memory for staging.

Read from lmcache/v1/storage_backend/storage_manager.py and local_disk_backend.py, and their caller, v1/cache_engine.py.
Real are the manager's calls, both backends, the policy, the memory objects and the files. `local_cpu` is off, so that
the CPU backend only allocates: with it on, a chunk that the disk has evicted may still be a hit in memory.

The backend reserves room and evicts when a put is submitted, and a worker writes later: a store is submitted when it
begins, and the worker's coroutine is run when it is completed, in this thread. A write that fails raises half-way, as
on a full disk. A load pins its chunks and reads them at once, as lookup and retrieve do. Files have no numbers: a unit
is a number that a key has for as long as the backend knows it or writes it.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from kvlockstep.impl.engines.lmcache.tier import (
    BARE,
    DTYPE,
    ENGINE,
    SHAPE,
    STUBS,
    UNIT,
    allocators,
    config,
    load_module,
    utils,
)
from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.reference.kv_tier.contract import HIT, MISS, Key, LoadPlan, StorePlan

# Memory for what is being written and read; it is given back before it runs short.
STAGING = 128


class AtOnce:
    """Executor of a worker that does each job in the thread that asks for it."""

    def __init__(self, loop: Any, max_workers: int = 1) -> None:
        pass

    async def submit_job(self, job: Callable[..., Any], *args: Any, priority: int = 0, **options: Any) -> Any:
        return job(*args, **options)


class Write:
    """A coroutine that waits for nothing, and may never be run."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def run(self) -> None:
        with suppress(StopIteration):
            self._coroutine.send(None)

    def __del__(self) -> None:
        self._coroutine.close()


class Worker:
    """Event loop of the backend's worker: keeps the last write that was submitted."""

    def __init__(self) -> None:
        self.submitted: Write | None = None

    def take(self) -> Write | None:
        write, self.submitted = self.submitted, None
        return write


def _submit(coroutine: Coroutine[Any, Any, Any], loop: Worker) -> None:
    loop.submitted = Write(coroutine)


with without_the_rest(ENGINE, BARE, STUBS):
    cpu = load_module("v1.storage_backend.local_cpu_backend")
    disk = load_module("v1.storage_backend.local_disk_backend")
    # Of the package itself the manager's constructor needs these two, and no other method.
    package: Any = sys.modules["lmcache.v1.storage_backend"]
    package.CreateStorageBackends = package.is_cuda_worker = None
    managers = load_module("v1.storage_backend.storage_manager")

disk.AsyncPQThreadPoolExecutor = AtOnce
disk.asyncio = SimpleNamespace(run_coroutine_threadsafe=_submit)


class Job(NamedTuple):
    """A plan in flight: the memory of each chunk, and the writes of a store that are not done."""

    loads: bool
    objects: dict[Key, Any]
    writes: dict[Key, Write]


class LMCacheDiskTier:
    """A disk with room for `units` chunks, under LRU. After a write that has failed this adapter cleans up."""

    engine = "lmcache"
    version = ENGINE.version
    extra_key = can_pin = skips = holds_bytes = True
    pending_visible = spares_offered = False

    def __init__(self, units: int) -> None:
        self.total = units
        # The folder goes with this object.
        self._folder = tempfile.TemporaryDirectory(prefix="kvlockstep-", ignore_cleanup_errors=True)
        made = config.LMCacheEngineConfig.from_defaults(
            local_cpu=False, local_disk=self._folder.name, max_local_disk_size=units * UNIT / 1024**3
        )
        memory = allocators.HostMemoryAllocator(STAGING * UNIT)
        self._worker = Worker()
        self._cpu = cpu.LocalCPUBackend(made, None, "cpu", None, memory)
        self.backend = disk.LocalDiskBackend(made, self._worker, self._cpu, "cpu")
        self.manager = manager_of(made, self._cpu, self.backend)
        self._units: dict[Key, int] = {}
        self._jobs: dict[Hashable, Job] = {}
        self._pins: dict[str, set[Key]] = {}
        self._ids = itertools.count()

    def lookup(self, key: Key, owner: str) -> Literal["miss", "hit"]:
        return HIT if self.manager.contains(key_of(key)) else MISS

    def pin(self, key: Key, owner: str) -> Literal["miss", "hit"]:
        pins = self._pins.setdefault(owner, set())
        if not self.manager.contains(key_of(key), pin=key not in pins):
            return MISS
        self.manager.touch_cache()
        pins.add(key)
        return HIT

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        before, refused = list(self._units), False
        job = Job(False, {}, {})
        for key in keys:
            known = key in self._units
            chunk = self.manager.allocate(SHAPE, DTYPE, busy_loop=False)
            self.manager.batched_put([key_of(key)], [chunk])
            self._forget_evicted(job)
            write = self._worker.take()
            if write is not None:
                job.objects[key], job.writes[key] = chunk, write
            refused |= write is None and not known
        if refused and not job.writes:
            return None
        evicted = [key for key in before if key not in self._units]
        used = set(self._units.values())
        free = (unit for unit in range(self.total) if unit not in used)
        units = dict(zip(job.writes, free, strict=False))
        self._units |= units
        return StorePlan(self._begin(job), units, evicted)

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        pins, job = self._pins.get(owner, set()), Job(True, {}, {})
        for key in keys:
            place = self.manager.contains(key_of(key), pin=key not in pins)
            self.manager.touch_cache()
            (job.objects[key],) = self.manager.batched_get([key_of(key)], place)
        pins -= set(keys)
        return LoadPlan(self._begin(job), {key: self._units[key] for key in keys})

    def write(self, plan: Hashable, key: Key, data: bytes) -> None:
        memory = self._jobs[plan].objects[key].byte_array.cast("B")
        memory[: 2 + len(data)] = len(data).to_bytes(2, "big") + data

    def read(self, plan: Hashable, key: Key) -> bytes | None:
        chunk = self._jobs[plan].objects[key]
        if chunk is None:
            return None
        packed = bytes(chunk.byte_array)
        return packed[2 : 2 + int.from_bytes(packed[:2], "big")]

    def complete(self, plan: Hashable, ok: bool) -> None:
        job = self._jobs.pop(plan, None)
        if job is None:
            return
        for key, write in job.writes.items():
            if ok:
                write.run()
            else:
                self._fail(key, write, job.objects[key])
        if job.loads:
            for chunk in filter(None, job.objects.values()):
                chunk.ref_count_down()
            self.manager.batched_unpin([key_of(key) for key in job.objects])
        self._forget_evicted()

    def touch(self, keys: Sequence[Key]) -> None:
        for key in map(key_of, keys):
            if self.manager.contains(key):
                self.backend.cache_policy.update_on_hit(key, self.backend.dict)

    def release(self, owner: str) -> None:
        self.manager.batched_unpin([key_of(key) for key in self._pins.pop(owner, ())])

    def avail(self) -> int:
        return self._room() + sum(bool(chunk.can_evict) for chunk in self.backend.dict.values())

    def free_units(self) -> list[int]:
        used = set(self._units.values())
        return [unit for unit in range(self.total) if unit not in used][: self._room()]

    def damage(self, key: Key, how: str) -> None:
        chunks = self.backend.dict
        path = chunks[key_of(key)].path
        others = [chunk.path for chunk in chunks.values() if chunk.path != path and os.path.exists(chunk.path)]
        match how:
            case "lose":
                os.remove(path)
            case "truncate" if os.path.exists(path):
                os.truncate(path, 1)
            case "repeat" if others:
                shutil.copyfile(others[0], path)

    def _fail(self, key: Key, write: Write, chunk: Any) -> None:
        self._break(write)
        # What the backend leaves behind.
        chunk.ref_count_down()
        self.backend.disk_worker.remove_put_task(key_of(key))
        self.backend.current_cache_size -= UNIT
        self.backend.usage -= UNIT

    def _break(self, write: Write) -> None:
        """Runs a write on a disk that is full half-way."""

        def broken(buffer: Any, path: str) -> None:
            with open(path, "wb") as file:
                file.write(bytes(buffer)[: UNIT // 2])
            raise OSError("no space left on device")

        self.backend.write_file = broken
        with suppress(OSError):
            write.run()
        del self.backend.write_file

    def _room(self) -> int:
        """Units that the backend counts as free."""
        return int(self.backend.max_cache_size - self.backend.current_cache_size) // UNIT

    def _forget_evicted(self, beginning: Job | None = None) -> None:
        """Keys that the backend neither has nor writes have no unit."""
        backend = self.backend
        self._units = {
            key: unit
            for key, unit in self._units.items()
            if key_of(key) in backend.dict or backend.exists_in_put_tasks(key_of(key))
        }
        for key in beginning.writes if beginning else ():
            self._units.pop(key, None)

    def _begin(self, job: Job) -> int:
        plan = next(self._ids)
        self._jobs[plan] = job
        return plan


class LMCacheDiskTierLeft(LMCacheDiskTier):
    """The same, and nobody cleans up after a write that has failed."""

    def _fail(self, key: Key, write: Write, chunk: Any) -> None:
        self._break(write)


class LMCacheDamagedDiskTier(LMCacheDiskTier):
    """The same on a disk that loses, truncates and mixes up files."""

    can_damage = True


def key_of(key: Key) -> Any:
    """The manager's key of a chunk."""
    tags = {} if key.extra_key is None else {"lmcache.tag.adapter": str(key.extra_key)}
    return utils.CacheEngineKey("model", 1, 0, key.hash, DTYPE, tags)


def manager_of(made: Any, memory: Any, on_disk: Any) -> Any:
    """A manager over two backends, with what its constructor makes, but for its thread and its metrics."""
    manager = object.__new__(managers.StorageManager)
    manager.config = made
    manager.storage_backends = OrderedDict(LocalCPUBackend=memory, LocalDiskBackend=on_disk)
    manager.allocator_backend = manager.local_cpu_backend = memory
    manager.internal_copy_stream = None
    manager._freeze, manager._freeze_lock = False, threading.RLock()
    manager._bypassed_backends, manager._bypass_lock = set(), threading.RLock()
    return manager


def make(units: int) -> LMCacheDiskTier:
    return LMCacheDiskTier(units)


def make_left(units: int) -> LMCacheDiskTier:
    return LMCacheDiskTierLeft(units)


def make_damaged(units: int) -> LMCacheDiskTier:
    return LMCacheDamagedDiskTier(units)
