"""kv_scheduler with transfers on vLLM's Scheduler (0.33.0) with its SimpleCPUOffloadConnector, eager and lazy.

A second CPU tier of the engine beside its OffloadingConnector: the units are those of a block pool of its own, and a
block that is copied keeps a reference in both pools until the end is heard. Real are both sides of the connector with
SimpleCPUOffloadScheduler and SimpleCPUOffloadWorker; in the place of the copy backend stands one that copies nothing,
and in the place of its events those that are done when somebody says so.

Eager, a block is stored in the step behind the one that has computed it, or when its request ends; lazy, when it comes
near its eviction. The load of one step is one transfer, whoever it is for. At a preemption the worker waits for
everything in flight, and reports it with that step. The engine's worker looks for what has ended right behind the
launch of a batch, so that what ends later is heard of with the next one. No transfer can fail.
Source: vllm/v1/simple_kv_offload/manager.py and worker.py; simple_cpu_offload_connector.py.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

from kvlockstep.impl.engines.copy_engine import Copies, Event
from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.vllm import events
from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.impl.engines.vllm.events import POOL
from kvlockstep.impl.engines.vllm.transfers.connected import ConnectedScheduler
from kvlockstep.reference.kv.transfers import TierUnits, Transfer

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector"
BARE = ("vllm.v1.simple_kv_offload",)
STUBS = (
    f"{CONNECTOR}.v1.metrics",
    "vllm._custom_ops",
    "vllm.distributed.parallel_state",
    "vllm.forward_context",
    "vllm.model_executor",
    "vllm.v1.simple_kv_offload.copy_backend",
    "vllm.v1.simple_kv_offload.cuda_mem_ops",
    "vllm.v1.simple_kv_offload.disk_backend",
    "vllm.v1.simple_kv_offload.metrics",
)
CPU, DISK = "cpu", "disk"
BLOCK_BYTES = 16

with without_the_rest(vllm.ENGINE, BARE, STUBS):
    product: Any = importlib.import_module(f"{CONNECTOR}.v1.simple_cpu_offload_connector")
    worker: Any = importlib.import_module("vllm.v1.simple_kv_offload.worker")

# Stores wait for the forward on the device; that they are submitted behind it says the same.
worker.torch = SimpleNamespace(
    Event=lambda: SimpleNamespace(record=lambda stream: None), cuda=SimpleNamespace(current_stream=lambda: None)
)


class CopyBackend(Copies):
    """Takes what the worker launches, to and from the tier of a name."""

    def __init__(self, tier: str) -> None:
        super().__init__()
        self._tier = tier
        self.rids: dict[int, Sequence[str]] = {}

    def launch_copy(
        self,
        src_blocks: list[int],
        dst_blocks: list[int],
        is_store: bool,
        event_idx: int,
        events_list: list[tuple[int, Event]],
        wait_event: Any = None,
    ) -> None:
        kind: Literal["store", "load"] = "store" if is_store else "load"
        id = (kind, event_idx)
        # Block 0 of the tier's pool is a null block, as that of the engine's.
        pool, tier = (src_blocks, dst_blocks) if is_store else (dst_blocks, src_blocks)
        places = [(block, unit - 1) for block, unit in zip(pool, tier, strict=True)]
        pairs = places if is_store else [(unit, block) for block, unit in places]
        rids = () if is_store else list(self.rids[event_idx])
        self.submitted.append(Transfer(id, kind, self._tier, pairs, rids))
        events_list.append((event_idx, self.event(id)))


class Connector(product.SimpleCPUOffloadConnector):  # type: ignore[misc]
    """The engine's, without its metrics."""

    def get_kv_connector_stats(self) -> None:
        return None


class SimpleOffloadingScheduler(ConnectedScheduler):
    """A scheduler with a SimpleCPUOffloadConnector, whose tier is as large as the pool, or half as large if `small`.

    With `disk` the tier is a file; the engine's pipeline to it is called as its copies to CPU memory are.

    If `lazy`, twice as large: in a tier that cannot hold what it stores ahead each step stores what the step before has
    evicted from there, and there is no moment without a transfer, in which a reset could come.

    What the tier announces is received as well, unless it is `lazy`, since its events name no tokens then. With
    `clears_late` it is received when the engine publishes it, which is behind what the pool has announced meanwhile:
    see vllm-tier-clears-pool in known.toml.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        lazy: bool = False,
        clears_late: bool = False,
        small: bool = False,
        disk: bool = False,
        **options: Any,
    ) -> None:
        self._lazy, self._small, self._disk = lazy, small, disk
        self._clears_late = clears_late
        self.silent_tiers = lazy or clears_late
        self._media = POOL if self.silent_tiers else {**POOL, events.CPU: CPU, events.STORAGE: DISK}
        self._reports: deque[Any] = deque()
        super().__init__(blocks, block_size, budget, running, **options)
        # A load is heard of behind those in front of it, so nobody outside knows which requests are ready.
        self.policy = None

    def connect(self, config: Any) -> Any:
        """Makes the connector's two sides; what they read of the configuration is at the engine's defaults."""
        caches, wide, hash_size = self._caches(self.blocks, self.block_size)
        pool = caches.num_blocks - 1
        name = DISK if self._disk else CPU
        size = -(-pool // 2) if self._small else 2 * pool if self._lazy else pool
        self.tiers = {name: size}
        units = size + 1
        config.kv_transfer_config.kv_connector_extra_config = {
            "cpu_bytes_to_use": units * BLOCK_BYTES,
            "num_cpu_blocks": units,
            "lazy_offload": self._lazy,
        }
        if self._disk:
            config.kv_transfer_config.kv_connector_extra_config |= {
                "kv_offload_backend": "disk",
                "disk_path": "never written",
                "disk_capacity_bytes": units * BLOCK_BYTES,
            }
        vars(config.cache_config).update(
            block_size=wide,
            prefix_match_unit=hash_size,
            simple_cpu_offload_num_blocks=None,
        )
        config.parallel_config.world_size = 1
        bytes_of_pool = caches.num_blocks * BLOCK_BYTES
        layers = [name for group in caches.kv_cache_groups for name in group.layer_names]
        tensor = vllm.interface.KVCacheTensor(
            bytes_of_pool, layers, layer_stride=bytes_of_pool, block_stride=BLOCK_BYTES
        )
        cache_config = replace(caches, kv_cache_tensors=[tensor])
        role = vllm.connector.KVConnectorRole
        self._copies = CopyBackend(name)
        self._worker = Connector(config, role.WORKER, cache_config)
        self._worker.worker_handler._backend = self._copies
        connector = Connector(config, role.SCHEDULER, cache_config)
        self._manager = connector.scheduler_manager
        return connector

    def results(self, finished: set[str]) -> Any:
        return self._reports.popleft()

    def reset(self) -> None:
        if not self._scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True):
            raise RuntimeError("the engine has refused to reset its caches")

    def _events_of_tier(self) -> Iterable[Any]:
        return () if self._clears_late else super()._events_of_tier()

    def transfers(self) -> Sequence[Transfer]:
        return self._copies.take()

    def waits(self) -> Collection[Hashable]:
        return self._copies.fence

    def complete(self, id: Hashable, ok: bool) -> None:
        self._copies.events.pop(id).done = True

    def tier(self, name: str) -> TierUnits:
        blocks = self._manager.cpu_block_pool.blocks[1:]
        cached = [block for block in blocks if block.block_hash is not None]
        rest = [block for block in blocks if block.block_hash is None]
        return TierUnits(
            [block.block_id - 1 for block in rest if not block.ref_cnt],
            [block.block_id - 1 for block in cached],
            [block.block_id - 1 for block in rest if block.ref_cnt],
            [block.block_id - 1 for block in cached if block.ref_cnt],
        )

    def _kept(self) -> set[int]:
        """Blocks that the connector keeps for its transfers, by its own books."""
        made = self._manager
        stores = [*made._store_event_to_blocks.values(), *made._abandoned_store_event_to_blocks.values()]
        loads = [*made._reqs_to_load.values(), *made._abandoned_reqs_to_load.values()]
        kept = [*stores, *made._pending_finished_stores, *(load.transfer_meta for load in loads)]
        return super()._kept().union(*(transfer.gpu_block_ids for transfer in kept))

    def _decide(self) -> Any:
        """The scheduler decides, and the worker does what it does in front of the batch and behind it."""
        output = super()._decide()
        engine, meta = self._worker, output.kv_connector_metadata
        self._copies.fence.clear()
        self._copies.rids = meta.load_event_to_reqs
        engine.handle_preemptions(meta)
        engine.bind_connector_metadata(meta)
        engine.start_load_kv(None)
        engine.wait_for_save()
        report = vllm.outputs.KVConnectorOutput()
        _, report.finished_recving = engine.get_finished(output.finished_req_ids)
        report.kv_connector_worker_meta = engine.build_connector_worker_meta()
        engine.clear_connector_metadata()
        self._reports.append(report)
        return output


make = SimpleOffloadingScheduler
make_lazy = partial(SimpleOffloadingScheduler, lazy=True)
make_async = partial(SimpleOffloadingScheduler, asynchronous=True)
make_lazy_async = partial(SimpleOffloadingScheduler, lazy=True, asynchronous=True)
make_small = partial(SimpleOffloadingScheduler, small=True)
make_disk = partial(SimpleOffloadingScheduler, disk=True)
make_clears_late = partial(SimpleOffloadingScheduler, clears_late=True)
make_ngram = partial(SimpleOffloadingScheduler, drafts=3)
