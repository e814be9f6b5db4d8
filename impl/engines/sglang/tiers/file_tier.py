"""kv_tier on SGLang's HiCacheFile, the storage below its host tier that keeps a page in a file.

Read from sglang/srt/mem_cache/hicache_storage.py and storage/file/lru_file_evictor.py, and their caller,
managers/cache_controller.py. Real are the storage, its evictor and the file system. An extra key is part of the page's
hash, as in SGLang's trees.

`set` reserves room, evicts, writes and renames in one call. Here the reservation is made when a store begins, by the
evictor's own `reserve`, and `set` finds it when the store is completed. A store that fails, and a process that ends,
are a write that raises. `get` copies at once, and nothing holds the file afterwards. The controller takes whatever
`get` raises for a page that is not there, and so does this adapter. Files have no numbers: a unit is a number that a
key has for as long as the evictor counts its file.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import tempfile
from collections.abc import Hashable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.sglang.modules import ENGINE
from kvlockstep.reference.kv_tier.contract import HIT, MISS, Key, LoadPlan, StorePlan

PACKAGE = "sglang.srt.mem_cache"
BARE = (f"{PACKAGE}.storage", f"{PACKAGE}.storage.file")
# A page is a chunk behind its length.
PAGE = 128

with without_the_rest(ENGINE, BARE, ()):
    storage = import_module(f"{PACKAGE}.hicache_storage")
    evictors = import_module(f"{PACKAGE}.storage.file.lru_file_evictor")

# Every page that is not there is a warning.
for module in (storage, evictors):
    logging.getLogger(module.__name__).setLevel(logging.CRITICAL)


class Killed(BaseException):
    """The process ends here."""


class Broken:
    """A page whose write leaves half of its bytes behind and raises."""

    def __init__(self, page: torch.Tensor, error: type[BaseException]) -> None:
        self._page, self._error = page, error
        self.numel, self.element_size = page.numel, page.element_size

    def contiguous(self) -> Broken:
        return self

    def view(self, dtype: torch.dtype) -> Broken:
        return self

    def numpy(self) -> Broken:
        return self

    def tofile(self, path: str) -> None:
        Path(path).write_bytes(self._page.numpy().tobytes()[: PAGE // 2])
        raise self._error


class Job(NamedTuple):
    """A plan in flight, with its pages: to be written, or read."""

    loads: bool
    units: dict[Key, int]
    pages: dict[Key, torch.Tensor | None]


class SglangFileTier:
    """A directory with room for `units` pages, which are evicted to the last byte (`eviction_ratio` 1)."""

    engine = "sglang"
    version = ENGINE.version
    extra_key = can_reset = refusal_evicts = holds_bytes = can_reopen = True
    pending_visible = spares_offered = loads_hold = False

    def __init__(self, units: int) -> None:
        self.total = units
        # The folder goes with this object.
        self._folder = tempfile.TemporaryDirectory(prefix="kvlockstep-", ignore_cleanup_errors=True)
        self._units: dict[Key, int] = {}
        self._ids = itertools.count()
        self._open()

    def lookup(self, key: Key, owner: str) -> Literal["miss", "hit"]:
        return HIT if self.backend.exists(name_of(key)) else MISS

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        storing = {key for job in self._jobs.values() if not job.loads for key in job.units}
        before, new = dict(self._units), list[Key]()
        for key in keys:
            if key in storing:
                continue
            if self.backend.exists(name_of(key)):
                self.backend.set(name_of(key))
                continue
            room = self._evictor.reserve(self._stem(key), PAGE)
            self._forget_evicted()
            if not room:
                for reserved in new:
                    self._evictor.abort(self._stem(reserved))
                return None
            new.append(key)
        evicted = [key for key in before if key not in self._units]
        free = iter(self.free_units())
        units = {key: next(free) for key in new}
        self._units |= units
        pages: dict[Key, torch.Tensor | None] = dict.fromkeys(units, torch.zeros(PAGE, dtype=torch.uint8))
        return StorePlan(self._begin(Job(False, units, pages)), units, evicted)

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        units = {key: self._units[key] for key in keys}
        return LoadPlan(self._begin(Job(True, units, {key: self._get(key) for key in keys})), units)

    def write(self, plan: Hashable, key: Key, data: bytes) -> None:
        packed = len(data).to_bytes(2, "big") + data
        self._jobs[plan].pages[key] = torch.frombuffer(bytearray(packed.ljust(PAGE, b"\0")), dtype=torch.uint8)

    def read(self, plan: Hashable, key: Key) -> bytes | None:
        page = self._jobs[plan].pages[key]
        if page is None:
            return None
        packed = page.numpy().tobytes()
        return packed[2 : 2 + int.from_bytes(packed[:2], "big")]

    def complete(self, plan: Hashable, ok: bool) -> None:
        job = self._jobs.pop(plan, None)
        if job is None or job.loads:
            return
        for key, page in job.pages.items():
            self.backend.set(name_of(key), page if ok or page is None else Broken(page, OSError))
        self._forget_evicted()

    def touch(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if self.backend.exists(name_of(key)):
                self.backend.set(name_of(key))

    def release(self, owner: str) -> None:
        pass

    def reset(self) -> None:
        self.backend.clear()
        self._forget_evicted()

    def avail(self) -> int:
        return self.total - len(self._evictor._pending_writes)

    def free_units(self) -> list[int]:
        used = set(self._units.values())
        return [unit for unit in range(self.total) if unit not in used]

    def damage(self, key: Key, how: str) -> None:
        file = self._file(key)
        others = [path for path in map(self._file, self._units) if path != file and path.exists()]
        match how:
            case "lose":
                file.unlink(missing_ok=True)
            case "truncate" if file.exists():
                os.truncate(file, PAGE // 2)
            case "repeat" if others:
                shutil.copyfile(others[0], file)

    def reopen(self) -> None:
        for job in self._jobs.values():
            for key, page in () if job.loads else job.pages.items():
                with suppress(Killed):
                    self.backend.set(name_of(key), page if page is None else Broken(page, Killed))
        self._open()

    def _open(self) -> None:
        config = storage.HiCacheStorageConfig(
            tp_rank=0,
            tp_size=1,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=False,
            enable_storage_metrics=False,
            is_page_first_layout=False,
            model_name="model",
            extra_config={"max_size": self.total * PAGE, "eviction_ratio": 1.0},
        )
        self.backend = storage.HiCacheFile(config, self._folder.name)
        self._evictor = self.backend._evictor
        self._jobs: dict[Hashable, Job] = {}
        reserve = self._evictor.reserve

        def reserve_once(stem: str, size: int, key: str = "") -> bool:
            return stem in self._evictor._pending_writes or bool(reserve(stem, size, key))

        self._evictor.reserve = reserve_once
        self._forget_evicted()

    def _get(self, key: Key) -> torch.Tensor | None:
        page = torch.empty(PAGE, dtype=torch.uint8)
        try:
            found: torch.Tensor | None = self.backend.get(name_of(key), page)
        except OSError:
            return None
        return found

    def _forget_evicted(self) -> None:
        """Keys whose file the evictor counts no more have no unit."""
        self._units = {key: unit for key, unit in self._units.items() if self._stem(key) in self._evictor._lru}

    def _begin(self, job: Job) -> int:
        plan = next(self._ids)
        self._jobs[plan] = job
        return plan

    def _stem(self, key: Key) -> str:
        stem: str = self.backend._get_suffixed_key(name_of(key))
        return stem

    def _file(self, key: Key) -> Path:
        return Path(self._folder.name, f"{self._stem(key)}.bin")


class SglangDamagedFileTier(SglangFileTier):
    """The same on a storage that loses, truncates and mixes up files."""

    can_damage = True


def name_of(key: Key) -> str:
    """The hash of a page."""
    return f"{key.hash}" if key.extra_key is None else f"{key.hash}-{key.extra_key}"


def make(units: int) -> SglangFileTier:
    return SglangFileTier(units)


def make_damaged(units: int) -> SglangFileTier:
    return SglangDamagedFileTier(units)
