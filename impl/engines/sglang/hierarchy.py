"""kv_scheduler with transfers on SGLang's Scheduler (0.5.23) with its host tier: hierarchical cache, on CPU.

The scheduler is driven as in scheduler.py. Real are the tree with its write-through, write-back and load-back, the
HybridCacheController with its queues and acknowledgements, and the host pool's allocator. In the place of the
L2TransferEngine, which copies, stands one that copies nothing and whose events are done when somebody says so.

Written through, a page is stored when it is published: queued when the result of a batch is processed, and submitted
then or at the next step. Written back, it is stored when it is evicted, and the scheduler waits for that. A load is
submitted with the batch that needs it, which waits for it layer by layer; the engine hears of its end in a later step.
On the device both directions run behind the batches in flight (`load_fence_stream`, `write_fence_stream`). What ends
earlier than what was submitted before it is heard of with that. No transfer can fail.

The engine loads nothing shorter than 10 tokens, which small pools would hardly meet; here it is one.
Source: sglang/srt/mem_cache/unified_radix_cache.py, hybrid_cache/hybrid_cache_controller.py; sglang/srt/managers/
cache_controller.py.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

import torch

from kvlockstep.impl.engines.copy_engine import Copies, Event
from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.sglang import scheduler as sglang
from kvlockstep.impl.engines.sglang.host_tier import host_pool
from kvlockstep.impl.engines.sglang.manager import ENGINE
from kvlockstep.reference.kv.transfers import TierUnits, Transfer
from kvlockstep.reference.kv_scheduler.contract import Batch

PACKAGE = "sglang.srt.mem_cache"
BARE = (f"{PACKAGE}.hybrid_cache",)
HOST = "host"

with without_the_rest(ENGINE, BARE, sglang.STUBS):
    controllers: Any = importlib.import_module(f"{PACKAGE}.hybrid_cache.hybrid_cache_controller")
    base: Any = importlib.import_module("sglang.srt.managers.cache_controller")
    FULL: Any = importlib.import_module(f"{PACKAGE}.unified_cache.component_type").ComponentType.FULL


class CopyEngine(Copies):
    """Takes what the controller submits. `needed` are the transfers that the batch waits for."""

    def __init__(self, page: int) -> None:
        super().__init__()
        self.needed: list[Hashable] = []
        self.device_to_host_stream = self.host_to_device_stream = sglang.Silent()
        self._page = page
        self._ids = itertools.count()

    def submit_device_to_host(self, transfers: Sequence[Any]) -> Any:
        return self._submit("store", transfers)

    def submit_host_to_device(self, transfers: Sequence[Any], **_options: Any) -> Any:
        done = self._submit("load", transfers)
        self.needed.append(self.submitted[-1].id)
        return done

    def _submit(self, kind: Literal["store", "load"], transfers: Sequence[Any]) -> Any:
        host = [unit for transfer in transfers for unit in self._pages(transfer.host_indices)]
        device = [block for transfer in transfers for block in self._pages(transfer.device_indices)]
        id = next(self._ids)
        places = (host, device) if kind == "load" else (device, host)
        pairs = list(zip(*places, strict=True))
        # What was waited for gives its page or its unit to this one.
        after = tuple(self.fence)
        self.submitted.append(Transfer(id, kind, HOST, pairs, (), False, after))
        return SimpleNamespace(start_event=Event(done=True), finish_event=self.event(id), timing_enabled=False)

    def _pages(self, slots: Any) -> list[int]:
        return [slot // self._page for slot in slots.tolist()[:: self._page]]


class Controller(controllers.HybridCacheController):  # type: ignore[misc]
    """The engine's, made without its `__init__`, which looks for devices."""

    def __init__(self, allocator: Any, pools: Any, page: int, write_policy: str) -> None:
        self.mem_pool_device_allocator, self.mem_pool_host = allocator, pools
        self.page_size, self.write_policy, self.io_backend = page, write_policy, "kernel"
        self.device = "cpu"
        self.is_kv_sharded = self.enable_storage = False
        self.storage_backend = self.pp_prefetch_command_group = self.pp_prefetch_command_thread = None
        self.pp_prefetch_state_lock = nullcontext()
        self.pp_prefetch_states: dict[str, Any] = {}
        self.pp_prefetch_decisions: dict[str, Any] = {}
        self.load_fence_stream = self.write_fence_stream = sglang.Silent()
        self.load_queue: list[Any] = []
        self.write_queue: list[Any] = []
        self.ack_load_queue: list[Any] = []
        self.ack_write_queue: list[Any] = []
        self.storage_stop_event = sglang.Silent()
        self.transfer_layer_id_max = 1
        # Layers are waited for in the batch, so they are done when the next load begins.
        with patch.object(base, "device_module", SimpleNamespace(Event=partial(Event, done=True))):
            self.layer_done_counter = base.LayerDoneCounter(1)
        self.l2_transfer_engine = CopyEngine(page)

    def _stop_storage_threads(self) -> None:
        """There are none."""


def host_pools(pages: int, page: int) -> Any:
    """A host pool of so many pages, without memory, in the group that the controller wants."""
    pool = host_pool(pages, page)
    entry = controllers.PoolEntry(controllers.PoolName.KV, pool, None, lambda layer: layer, True)
    return controllers.HostPoolGroup([entry])


class DrainingScheduler(sglang.Scheduler):
    """Without sglang-scheduler-aborted-under-store: waits for its stores before it retracts a request."""

    def update_running_batch(self, batch: Any) -> Any:
        if batch.reqs and not batch.check_decode_mem():
            self.tree_cache.writing_check(write_back=True)
        return super().update_running_batch(batch)


class HierarchicalScheduler(sglang.SGLangScheduler):
    """A Scheduler whose tree has a host tier, as large as the pool, with one of the engine's `write_policy`."""

    late_release = in_steps = ordered = True

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        write_policy: str = "write_through",
        kind: Callable[..., Any] = DrainingScheduler,
        **options: Any,
    ) -> None:
        super().__init__(blocks, block_size, budget, running, kind, core="python", **options)
        self.tiers = {HOST: blocks}
        self._pools = host_pools(blocks, block_size)
        self._controller = Controller(self._allocator, self._pools, block_size, write_policy)
        self._copies: CopyEngine = self._controller.l2_transfer_engine
        tree = self._tree
        tree.cache_controller, tree.host_pool_group = self._controller, self._pools
        tree.components[FULL]._full_kv_pool_host = self._pools.anchor_entry.host_pool
        tree.tree_core.set_hicache_enabled()
        tree.write_through_threshold = 1 if write_policy == "write_through" else 2
        tree.is_write_back = write_policy == "write_back"
        tree.load_back_threshold = 1
        tree.metrics_collector = None
        self._scheduler.enable_hierarchical_cache = True

    def schedule(self) -> Batch:
        self._copies.fence.clear()
        self._copies.needed.clear()
        first = len(self._copies.submitted)
        batch = super().schedule()
        rids = [item.rid for item in batch.items if self._reqs[item.rid].host_loaded_length]
        # All of it was submitted in front of the batch.
        self._copies.submitted[first:] = [
            transfer._replace(before=True, rids=rids if transfer.kind == "load" else ())
            for transfer in self._copies.submitted[first:]
        ]
        return batch

    def reset(self) -> None:
        self._copies.fence.clear()
        super().reset()
        # What the retraction has written back was waited for, and is forgotten.
        done = self._copies.fence
        self._copies.submitted = [transfer for transfer in self._copies.submitted if transfer.id not in done]
        if self._tree.tree_core.evictable_size():
            raise RuntimeError("the engine has refused to flush its caches")

    def poll(self) -> None:
        self._copies.fence.clear()
        self._tree.check_hicache_events()

    def transfers(self) -> Sequence[Transfer]:
        return self._copies.take()

    def waits(self) -> Collection[Hashable]:
        return [*self._copies.fence, *self._copies.needed]

    def complete(self, id: Hashable, ok: bool) -> None:
        self._copies.events.pop(id).done = True

    def tier(self, name: str) -> TierUnits:
        pool, size = self._pools.anchor_entry.host_pool, self.block_size
        free = torch.cat([pool.free_slots, *pool.release_slots])
        storing, cached, pinned = list[int](), list[int](), list[int]()
        for node in self._nodes():
            data = node.component_data[FULL]
            units = [] if data.host_value is None else (data.host_value[::size] // size).tolist()
            (cached if node.write_through_pending_id is None else storing).extend(units)
            if node.write_through_pending_id is None and data.host_lock_ref:
                pinned += units
        return TierUnits((free[::size] // size).tolist(), cached, storing, pinned)

    def limbo(self) -> int:
        """Slots on the paths that transfers keep, of nobody who is live."""
        kept: set[int] = set()
        for id in [*self._tree.ongoing_write_through, *self._tree.ongoing_load_back]:
            node = self._tree.tree_core.node_by_id(id)
            while node.parent is not None:
                slots = node.component_data[FULL].value
                kept.update(() if slots is None else slots.tolist())
                node = node.parent
        for rid, req in self._reqs.items() if kept else ():
            if req.kv.holds_kv:
                kept.difference_update(self.slots(rid))
        return len(kept)

    def _nodes(self) -> Iterable[Any]:
        """The nodes of the tree, as they lie in its arena."""
        return list(self._tree.tree_core._node_arena.values())


make = HierarchicalScheduler
make_overlap = partial(HierarchicalScheduler, overlap=True)
make_overlap_back = partial(HierarchicalScheduler, write_policy="write_back", overlap=True)
make_selective = partial(HierarchicalScheduler, write_policy="write_through_selective", overlap=True)
make_undrained = partial(HierarchicalScheduler, kind=sglang.Scheduler)
