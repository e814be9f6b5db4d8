"""kv_scheduler with transfers on vLLM's Scheduler (0.33.0) with its OffloadingConnector and the CPU tier, LRU and ARC.

Real are both sides of the connector (offloading_engine.py) and its CPU manager. The connector decides a store in the
step that computes its blocks and submits it in the next. It frees blocks under a running store and has the worker wait
before they are written (`jobs_to_flush`). It asserts that every transfer succeeds, so none may fail.

A request waits while its own stores are in flight, or while another one stores what it could hit. Others overtake it,
so no order of admission is promised.
Source: vllm/distributed/kv_transfer/kv_connector/v1/offloading_connector.py and offloading/; vllm/v1/kv_offload.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from kvlockstep.impl.engines.vllm import events
from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.impl.engines.vllm.events import POOL
from kvlockstep.impl.engines.vllm.tier import cpu
from kvlockstep.impl.engines.vllm.transfers.connected import ConnectedScheduler
from kvlockstep.impl.engines.vllm.transfers.offloading_engine import (
    CPU,
    CopyEngine,
    OneTokenComputed,
    Spec,
    offload,
    product,
)
from kvlockstep.impl.slots import slots_of
from kvlockstep.reference.kv.transfers import TierUnits, Transfer


class OffloadingScheduler(ConnectedScheduler):
    """A scheduler with an OffloadingConnector, whose tier is as large as the pool, or `half` as large.

    Each chunk of the tier holds `per_chunk` blocks. With `prompt_only` nothing is stored behind the prompt, as by the
    engine's default. What has been offered `threshold` times is stored, with 0 or 1 everything. If `capped`, most
    requests bring a limit of what is stored or loaded for them.

    With `tier_events` what the tier announces is received as well. It names no salts (vllm-offloaded-without-salt), and
    no tokens of a chunk that is evicted and stored again before anybody takes the events.
    """

    # The engine's default; schedulers with groups have their own.
    _retention: int | None = 0

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        eviction: str = "lru",
        inside: bool = False,
        prompt_only: bool = False,
        repaired: bool = True,
        tier_events: bool = False,
        per_chunk: int = 1,
        threshold: int = 0,
        capped: bool = False,
        half: bool = False,
        **options: Any,
    ) -> None:
        self._tier_events = tier_events
        self._per_chunk, self._threshold, self._capped = per_chunk, threshold, capped
        self._half = half
        if tier_events:
            self.silent_tiers, self._media = False, {**POOL, events.CPU: CPU}
        self._eviction, self._inside, self._prompt_only, self._repaired = eviction, inside, prompt_only, repaired
        super().__init__(blocks, block_size, budget, running, **options)
        self.policy = None

    def connect(self, config: Any) -> Any:
        """Makes the connector's two sides.

        What they read of the configuration is at the engine's defaults. Only `offload_prompt_only` is off, so that what
        is decoded is stored as well, unless this is `prompt_only`.
        """
        caches, wide, hash_size = self._caches(self.blocks, self.block_size)
        self._chunks = -(-(caches.num_blocks - 1) // (self._per_chunk * (2 if self._half else 1)))
        self.tiers = {CPU: self._chunks * self._per_chunk}
        config.kv_transfer_config.kv_connector_extra_config = {
            "blocks_per_chunk": self._per_chunk,
            "offload_prompt_only": self._prompt_only,
            "sync_load_budget_bytes": 1 << 30 if self._inside else 0,
            "self_describing_kv_events": self._tier_events,
        }
        vars(config.cache_config).update(
            block_size=wide,
            prefix_match_unit=hash_size,
            prefix_cache_retention_interval=self._retention,
            cache_dtype="auto",
            kv_cache_layout=None,
        )
        vars(config.model_config).update(
            model="model", dtype="torch.float16", use_mla=False, get_total_num_kv_heads=lambda: 1
        )
        vars(config.parallel_config).update(
            world_size=1, rank=0, tensor_parallel_size=1, data_parallel_rank_local=None, nnodes_within_dp=1,
            distributed_executor_backend="uni",
        )  # fmt: skip
        self._manager = self._make_manager()
        self._copies = CopyEngine(self._per_chunk)
        product.OffloadingSpecFactory = SimpleNamespace(
            create_spec=lambda given: Spec(given, self._manager, self._copies)
        )
        role = vllm.connector.KVConnectorRole
        self._worker = product.OffloadingConnector(config, role.WORKER, caches)
        self._worker.connector_worker._init_worker(None)
        kind = OneTokenComputed if self._repaired else product.OffloadingConnector
        return kind(config, role.SCHEDULER, caches)

    def results(self, finished: set[str]) -> Any:
        output = vllm.outputs.KVConnectorOutput()
        _, output.finished_recving = self._worker.get_finished(finished)
        output.kv_connector_worker_meta = self._worker.build_connector_worker_meta()
        return output

    def transfers(self) -> Sequence[Transfer]:
        return self._copies.take()

    def waits(self) -> Collection[Hashable]:
        return self._copies.fence

    def complete(self, id: Hashable, ok: bool) -> None:
        self._copies.finished.append(offload.TransferResult(id, ok))

    def tier(self, name: str) -> TierUnits:
        manager = self._cpu
        policy = manager._policy
        found = policy.chunks.values() if self._eviction == "lru" else [*policy.t1.values(), *policy.t2.values()]
        chunks = [(chunk.chunk_id, chunk.ref_cnt) for chunk in found]
        free = [*manager._free_list, *range(manager._num_allocated_chunks, self._chunks)]
        return TierUnits(
            self._units_of(free),
            self._units_of(chunk for chunk, count in chunks if count >= 0),
            self._units_of(chunk for chunk, count in chunks if count < 0),
            self._units_of(chunk for chunk, count in chunks if count > 0),
        )

    @property
    def _cpu(self) -> Any:
        """The manager of the CPU tier."""
        return self._manager

    def _units_of(self, chunks: Iterable[int]) -> list[int]:
        return slots_of(chunks, self._per_chunk)

    def _make_manager(self) -> Any:
        return cpu.CPUOffloadingManager(
            self._chunks, self._eviction, enable_events=self._tier_events, store_threshold=self._threshold
        )

    def _mark(self, request: Any) -> None:
        caps = {"max_offload_tokens": 2 * self.block_size, "max_load_tokens": self.block_size}
        kept = (), ("max_offload_tokens",), ("max_load_tokens",), tuple(caps)
        if self._capped:
            request.kv_transfer_params = {name: caps[name] for name in kept[self._added % len(kept)]}

    def _decide(self) -> Any:
        """The scheduler decides, and the worker does what it does in front of the batch and behind it."""
        output = super()._decide()
        worker, meta = self._worker, output.kv_connector_metadata
        self._copies.before, self._copies.fence = True, []
        self._copies.rids = {id: job.req_id for id, job in meta.load_jobs.items()}
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        self._copies.before = output.has_sync_kv_loads
        worker.start_load_kv(None)
        worker.wait_for_save()
        return output


make = OffloadingScheduler
make_arc = partial(OffloadingScheduler, eviction="arc")
make_inside = partial(OffloadingScheduler, inside=True)
make_async = partial(OffloadingScheduler, asynchronous=True)
make_prompt = partial(OffloadingScheduler, prompt_only=True)
make_chunks = partial(OffloadingScheduler, per_chunk=2)
make_chunks_inside = partial(OffloadingScheduler, per_chunk=3, inside=True)
make_threshold = partial(OffloadingScheduler, threshold=2)
make_capped = partial(OffloadingScheduler, capped=True)
make_async_arc = partial(OffloadingScheduler, eviction="arc", asynchronous=True)
make_async_inside = partial(OffloadingScheduler, inside=True, asynchronous=True)
make_tier_events = partial(OffloadingScheduler, tier_events=True)
make_unrepaired = partial(OffloadingScheduler, repaired=False)
