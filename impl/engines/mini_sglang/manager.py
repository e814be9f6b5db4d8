"""kv_manager on the CacheManager of mini-sglang (0.1.0) with its radix cache, on CPU.

Calls come in the order of the engine's own scheduler: waiting requests and the next chunks pass its PrefillAdder, one
for each step, which looks up, locks and sets room aside; the pages of the whole batch are allocated at launch, where
`complete_one` advances all lengths; a completed prompt is cached after the forward, a finished or aborted request when
it is freed. The engine keeps room for a request's whole output, so that a decode never lacks a page, and has no
preemption: here outputs have length 0 at admission, a reserve without room is refused before the engine is asked, and
a preempted request is aborted and submitted again. Source: minisgl/scheduler/scheduler.py and prefill.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch

from kvlockstep.impl.engines.host_memory import pageable
from kvlockstep.impl.engines.loading import EngineMissing, find, without_the_rest

ENGINE = find("minisgl", "scheduler/cache.py", "git clone https://github.com/sgl-project/mini-sglang")


def _load(name: str) -> Any:
    return importlib.import_module(f"minisgl.{name}")


with without_the_rest(ENGINE, ("minisgl", "minisgl.scheduler"), ("minisgl.utils.hf", "minisgl.utils.mp")):
    core, cache, prefill, table, utils, kernel = (
        _load(name)
        for name in ("core", "scheduler.cache", "scheduler.prefill", "scheduler.table", "scheduler.utils", "kernel")
    )

try:
    # The tree compares keys in C++, which is compiled when it is first called.
    kernel.fast_compare_key(torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32))
except Exception as error:
    raise EngineMissing(f"mini-sglang needs a C++ compiler and apache-tvm-ffi: {error}") from error

MAX_RUNNING = 64
NO_OUTPUT = core.SamplingParams(max_tokens=0)


class MiniSglangKVManager:
    """One CacheManager with page size `block_size`. A request is at most as long as the pool, as in the engine."""

    engine = "mini-sglang"
    version = ENGINE.version
    chunk = whole_prompt = True
    tokens_per_decode = 1
    hash_trust = "none"

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.total = self.max_length = blocks * block_size
        core._GLOBAL_CTX = None
        core.set_global_ctx(core.Context(block_size))
        page_table = torch.zeros((MAX_RUNNING, self.total), dtype=torch.int32)
        self._table = table.TableManager(MAX_RUNNING, page_table)
        self._cache = cache.CacheManager(blocks, block_size, page_table, "radix")
        self._requests: dict[str, Any] = {}
        self._pending: dict[str, Any] = {}
        self._batch: dict[str, Any] = {}
        self._adder: Any = None
        self._new_adder: Any = prefill.PrefillAdder

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        pending = utils.PendingReq(0, torch.tensor(tokens, dtype=torch.int32), NO_OUTPUT)
        if not self._prefill(rid, pending, n):
            return None
        cached: int = self._requests[rid].cached_len
        return cached

    def append(self, rid: str, token: int) -> None:
        self._requests[rid].append_host(torch.tensor([token], dtype=torch.int32))

    def reserve(self, rid: str, n: int) -> bool:
        req = self._requests[rid]
        pages = self._pages(req.cached_len, req.cached_len + n)
        if self._owed() + pages * self.block_size > self.avail():
            return False
        if isinstance(req, prefill.ChunkedReq):
            return self._prefill(rid, self._pending[rid], n)
        self._step_adder().reserved_size += pages * self.block_size
        self._batch[rid] = req
        return True

    def copies(self) -> list[tuple[int, int]]:
        return []

    def launch(self) -> None:
        with pageable():
            self._cache.allocate_paged(list(self._batch.values()))
        for req in self._batch.values():
            req.complete_one()
        self._adder = None

    def slots(self, rid: str) -> list[int]:
        req, size = self._requests[rid], self.block_size
        row: list[int] = self._cache.page_table[req.table_idx, : self._pages(0, req.cached_len) * size].tolist()
        return row

    def blocks(self, rid: str) -> list[int]:
        """The block table: block i holds positions [i * block_size, (i + 1) * block_size)."""
        return [slot // self.block_size for slot in self.slots(rid)[:: self.block_size]]

    def commit(self, rid: str, n: int) -> None:
        req = self._batch.pop(rid)
        if rid in self._pending and not isinstance(req, prefill.ChunkedReq):
            del self._pending[rid]
            with self._cache.lazy_free_region():
                self._cache.cache_req(req, finished=False)

    def finish(self, rid: str) -> None:
        req = self._requests.pop(rid)
        self._pending.pop(rid, None)
        self._batch.pop(rid, None)
        self._table.free(req.table_idx)
        self._cache.cache_req(req, finished=True)

    def abort(self, rid: str) -> None:
        self.finish(rid)

    def preempt(self, rid: str) -> None:
        self.finish(rid)

    def avail(self) -> int:
        return int(self._cache.available_size)

    def free_now(self) -> int:
        return len(self._cache.free_slots) * self.block_size

    def free_slots(self) -> Iterable[int] | None:
        return [first + i for first in self._cache.free_slots.tolist() for i in range(self.block_size)]

    def free_blocks(self) -> list[int]:
        """The pages in the free list."""
        return [first // self.block_size for first in self._cache.free_slots.tolist()]

    def _prefill(self, rid: str, pending: Any, n: int) -> bool:
        adder = self._step_adder()
        adder.token_budget = n
        with pageable():
            req = adder.try_add_one(pending)
        if req is None:
            return False
        pending.chunked_req = req if isinstance(req, prefill.ChunkedReq) else None
        self._requests[rid] = self._batch[rid] = req
        self._pending[rid] = pending
        return True

    def _step_adder(self) -> Any:
        if self._adder is None:
            self._adder = self._new_adder(0, 0, self._cache, self._table)
        return self._adder

    def _owed(self) -> int:
        """Slots that this step's batch will allocate."""
        return sum(self._pages(req.cached_len, req.device_len) for req in self._batch.values()) * self.block_size

    def _pages(self, start: int, stop: int) -> int:
        return -(-stop // self.block_size) - -(-start // self.block_size)


class RepairedMiniSglangKVManager(MiniSglangKVManager):
    """The engine without the bugs of known.toml, to look for what lies behind them."""

    def __init__(self, blocks: int, block_size: int) -> None:
        super().__init__(blocks, block_size)
        self._new_adder = WholePageAdder

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        handle, row = self._requests[rid].cache_handle, self._requests[rid].table_idx
        if handle.cached_len:
            self._cache.page_table[row, : handle.cached_len] = handle.get_matched_indices()


class WholePageAdder(prefill.PrefillAdder):  # type: ignore[misc, name-defined]
    """Sets whole pages aside for the requests of a batch."""

    reserved_size: int

    def _add_one_req(self, pending_req: Any, cache_handle: Any, table_idx: int, cached_len: int) -> Any:
        reserved, size = self.reserved_size, self.cache_manager.page_size
        req = super()._add_one_req(pending_req, cache_handle, table_idx, cached_len)
        pages = -(-(pending_req.input_len + pending_req.output_len) // size) - -(-cached_len // size)
        self.reserved_size = reserved + pages * size
        return req


make = MiniSglangKVManager
make_repaired = RepairedMiniSglangKVManager
