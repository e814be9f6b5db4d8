"""kv_scheduler with a storage on SGLang's Scheduler (0.5.23) whose host memory is a buffer only, on CPU.

`--hicache-host-memory-mode buffer_only`: the tree holds nothing on the host. A page that is published is copied to a
host page, from there to the storage, and the host page is free again. What a request fetches stays in host pages of its
own until it is admitted. Then it is loaded and published at once.

Real is BufferModePipeline with its queues beside what storage.py drives. A fetch that finds no free host pages waits
until another one has been used, or given up.
Source: sglang/srt/mem_cache/buffer_mode/pipeline.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.sglang.modules import ENGINE, STUBS
from kvlockstep.impl.engines.sglang.tiers import hicache
from kvlockstep.impl.engines.sglang.tiers.storage import StoredTier
from kvlockstep.impl.engines.sglang.tiers.stored import AskingScheduler, StoringScheduler
from kvlockstep.reference.kv_scheduler.contract import Batch

BUFFER_ONLY = "buffer_only"

with without_the_rest(ENGINE, hicache.BARE, STUBS):
    runtime: Any = importlib.import_module("sglang.srt.runtime_context")
    base: Any = importlib.import_module("sglang.srt.managers.cache_controller")
    WINDOW: Any = importlib.import_module(f"{hicache.PACKAGE}.unified_cache.component_type").ComponentType.SWA


class BufferingScheduler(AskingScheduler):
    """Finds the mode in the engine's configuration, which all schedulers of this process share."""

    def _prefetch_kvcache(self, *given: Any) -> Any:
        memory = runtime.get_memory()
        memory._set("hicache_host_memory_mode", BUFFER_ONLY)
        try:
            return super()._prefetch_kvcache(*given)
        finally:
            memory._set("hicache_host_memory_mode", "cache")


class BufferTier(StoredTier):
    """Host pages that are buffers, with a storage behind them. No request is longer than `context`."""

    def __init__(self, tree: Any, allocator: Any, *given: Any, context: int, **sides: Any) -> None:
        super().__init__(tree, allocator, *given, **sides)
        controller, pool = self.controller, self._pools
        tree.host_memory_mode = controller.host_memory_mode = BUFFER_ONLY
        tree.tree_core.set_host_memory_buffer_only()
        size = allocator.size
        with patch.object(allocator, "get_kvcache", lambda: SimpleNamespace(size=size)):
            tree.buffer_pipeline = self.pipeline = tree.components[hicache.FULL].create_buffer_pipeline(
                max_context_len=context, swa_component=tree.components.get(WINDOW), write_backlog_cap=2 * size
            )
        controller.host_write_staged_tokens_fn = lambda: self.pipeline.write_staged_tokens_
        controller.prefetch_capacity_limit = int(base.HICACHE_LOAD_POOL_USAGE_FRACTION * pool.size)

        self._check = tree.writing_check
        tree.writing_check = self._writing_check

    def _writing_check(self, write_back: bool = False, finish_count: int | None = None) -> None:
        """The engine's, which with `write_back` waits for its stores, but not for those of a buffer."""
        self._check(write_back, finish_count)
        if not write_back:
            return
        for ack in self.controller.ack_write_queue:
            ack.finish_event.synchronize()
            for id in ack.node_ids:
                self.tree._finish_write_through_ack(id)
        self.controller.ack_write_queue.clear()

    @property
    def _nodes(self) -> None:
        """No node has a host page."""
        return None

    def slots_free(self) -> int:
        """Counts the host slots that nobody has."""
        return sum(int(part.pool.available_size()) for part in self.copies.parts)

    def kept(self) -> set[int]:
        pipeline, kept = self.pipeline, set[int]()
        ends = [entry.intent.snapshot.node_id for entry in pipeline.ongoing_write_through.values()]
        for end in [*ends, *(lock.node_id for lock in pipeline.anchor_locks.values())]:
            kept.update(self.tree.path_device_indices(end).tolist())
        for load in pipeline.ongoing_buffer_load_back.values():
            kept.update(load.device_indices.tolist())
        return kept


class BufferScheduler(StoringScheduler):
    """A Scheduler with host pages that are buffers, and a storage that is twice as large as the pool.

    With `pins` a request is half as long as the pool at most, and what is left may be kept for those who fetch what is
    behind it. If `repaired`, nothing is locked between the chunks of a prompt: see sglang-buffer-locks-under-chunk.
    """

    buffered = True

    _kind = BufferingScheduler
    tier_type: Callable[..., BufferTier] = BufferTier
    _host: BufferTier

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        pins: bool = False,
        repaired: bool = True,
        **options: Any,
    ) -> None:
        longest = blocks * block_size // (1 + pins)
        # The engine takes requests that are shorter than the context.
        tier = partial(self.tier_type, context=longest + 1)
        super().__init__(blocks, block_size, budget, running, tier=tier, **options)
        self.max_length = min(self.max_length, longest)
        self._deciding = False
        pipeline = self._host.pipeline
        pipeline.prepare_staged_prefetch = self._noting(pipeline.prepare_staged_prefetch)
        if repaired:
            pipeline.try_lock_anchor = self._without_pins(pipeline.try_lock_anchor)
            pipeline.flush_pending_writes = self._with_wait(pipeline.flush_pending_writes)

    def _decide(self) -> tuple[Batch, int]:
        self._free_before, self._deciding = self._host.slots_free(), True
        decided = super()._decide()
        self._deciding = False
        return decided

    def _has_room(self) -> bool:
        """A pass looks for room for those who wait for it before it frees what they wait for."""
        before, self._free_before = self._free_before, self._host.slots_free()
        return bool(self._host.pipeline.pending_hit_allocs) and self._free_before > before

    def _without_pins(self, lock: Callable[..., Any]) -> Callable[..., Any]:
        """Keeps nothing for a fetch between the chunks of a prompt."""
        pipeline, most = self._host.pipeline, self._host.pipeline.anchor_lock_cap_tokens

        def locking(*given: Any) -> Any:
            pipeline.anchor_lock_cap_tokens = most if self._scheduler.chunked_req is None else 0
            return lock(*given)

        return locking

    def _with_wait(self, flush: Callable[[], None]) -> Callable[[], None]:
        """Waits for its stores between the chunks of a prompt."""

        def flushing() -> None:
            flush()
            if self._deciding and self._scheduler.chunked_req is not None:
                self._tree.writing_check(write_back=True)

        return flushing

    def _noting(self, prepare: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """Notes whom a pass leaves out since the pool has lost what was in front of its fetch: it fetches again."""

        def noting(req: Any) -> bool:
            ready = prepare(req)
            if not ready:
                self._leave_out(req)
            return ready

        return noting

    def _leave_out(self, req: Any) -> None:
        self._scheduler.left_out.add(req.rid)


make = partial(BufferScheduler, overlap=True)
make_normal = BufferScheduler
make_best_effort = partial(BufferScheduler, overlap=True, policy="best_effort", batch=1)
make_timeout = partial(BufferScheduler, overlap=True, policy="timeout", batch=1)
make_selective = partial(BufferScheduler, overlap=True, write_policy="write_through_selective")
make_rust = partial(make_timeout, core="rust")
make_pins = partial(BufferScheduler, overlap=True, pins=True)
make_unrepaired = partial(BufferScheduler, repaired=False)
