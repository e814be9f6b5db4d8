"""kv_scheduler with groups and transfers on vLLM's Scheduler (0.33.0) with its two connectors for CPU memory.

The scheduler and its groups are those of hybrid_scheduler.py, the connectors those of simple_offloading.py and
offloading.py. Both support the hybrid manager (`SupportsHMA`). The tier of the first is a block pool with a hybrid
coordinator of its own, that of the other is one of chunks, whose groups the connector looks up one after the other.
Neither is given what each group has in the pool (`supports_divergent_local_hybrid_hits`); connectors between instances
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.impl.engines.vllm.hybrid_scheduler import (
    CHUNKED,
    FULL,
    STATE,
    TWO_SIZES,
    WINDOW,
    WINDOWS,
    VllmHybridScheduler,
)
from kvlockstep.impl.engines.vllm.transfers.connected import ConnectedScheduler
from kvlockstep.impl.engines.vllm.transfers.offloading import OffloadingScheduler
from kvlockstep.impl.engines.vllm.transfers.simple_offloading import SimpleOffloadingScheduler
from kvlockstep.impl.engines.vllm.transfers.tiering import TieringScheduler


class HybridConnected(ConnectedScheduler, VllmHybridScheduler):
    """A hybrid scheduler with a connector. It looks up in the tier what is behind the hit of all groups in the pool."""

    def __init__(
        self, blocks: int, block_size: int, budget: int, running: int, repaired: bool = True, **options: Any
    ) -> None:
        super().__init__(blocks, block_size, budget, running, **options)
        if repaired:
            for manager in self._scheduler.kv_cache_manager.coordinator.single_type_managers:
                manager.get_num_blocks_to_allocate = reserving(manager)

    def slots(self, rid: str, group: int = 0) -> list[int | None]:  # type: ignore[override]
        return VllmHybridScheduler.slots(self, rid, group) if self._lives(rid) else []

    def held(self, rid: str, group: int) -> list[int]:
        return super().held(rid, group) if self._lives(rid) else []

    def limbo(self) -> int:
        return len(self._blocks_in_limbo())

    def _lives(self, rid: str) -> bool:
        request = self._scheduler.requests.get(rid)
        return request is not None and not request.is_finished()


def reserving(manager: Any) -> Any:
    """The manager's count of what a request still lacks, without the null blocks in front of its window.

    See vllm-window-reserves-nothing in known.toml.
    """
    count = manager.get_num_blocks_to_allocate

    def counted(request_id: str, num_tokens: int, *given: Any, apply_admission_cap: bool = False, **named: Any) -> int:
        lacks = int(count(request_id, num_tokens, *given, apply_admission_cap=apply_admission_cap, **named))
        table = manager.req_to_blocks.get(request_id, ())
        slid = len([block for block in table if block.is_null])
        most: int | None = manager.max_admission_blocks_per_request
        if not apply_admission_cap or not slid or most is None:
            return lacks
        required = min(-(-num_tokens // int(manager.block_size)) - slid, most)
        return max(lacks, required - (len(table) - slid))

    return counted


class SimpleHybrid(SimpleOffloadingScheduler, HybridConnected):
    """With a SimpleCPUOffloadConnector. If `stale`, it stores what others have in blocks that have slid away."""

    def __init__(
        self, blocks: int, block_size: int, budget: int, running: int, stale: bool = False, **options: Any
    ) -> None:
        super().__init__(blocks, block_size, budget, running, **options)
        if not stale:
            self._manager._select_eager_blocks_to_store = of_its_own(self._manager)


def of_its_own(manager: Any) -> Any:
    """The connector's choice of what to store of a request, without blocks that are another's by now.

    See vllm-slid-block-announced-as-another in known.toml.
    """
    select = manager._select_eager_blocks_to_store

    def selected(state: Any, tables: Sequence[Sequence[int]]) -> Any:
        request, blocks = state.request, manager._gpu_block_pool.blocks
        own: list[list[int]] = []
        for g, table in enumerate(tables):
            size = manager.group_block_sizes[g]
            hashes = vllm.utils.resolve_block_hashes(request.block_hashes, manager.hash_block_size, size)
            known = [vllm.utils.make_block_hash_with_group_id(hash, g) for hash in hashes[: len(table)]]
            others = [blocks[block].block_hash not in (None, hash) for block, hash in zip(table, known, strict=False)]
            own.append([0 if other else block for block, other in zip_longest(table, others)])
        return select(state, tuple(own))

    return selected


class OffloadingHybrid(OffloadingScheduler, HybridConnected):
    """With an OffloadingConnector. Unless it is `whole`, it stores chunks of which a block has slid away."""

    def __init__(
        self, blocks: int, block_size: int, budget: int, running: int, whole: bool = True, **options: Any
    ) -> None:
        self._whole = whole
        super().__init__(blocks, block_size, budget, running, **options)

    def connect(self, config: Any) -> Any:
        connector = super().connect(config)
        scheduler = connector.connector_scheduler
        if self._repaired:
            scheduler._build_store_jobs = fencing(scheduler)
        if self._whole:
            scheduler._reachable_store_block_mask = whole_chunks(scheduler)
        return connector


def whole_chunks(scheduler: Any) -> Any:
    """The connector's mask of the blocks that a hit may need; a hit that needs one of a chunk may need all of it.

    See vllm-part-of-chunk-unwritten in known.toml.
    """
    mask, size = scheduler._reachable_store_block_mask, scheduler.config.blocks_per_chunk

    def masked(**given: Any) -> list[bool] | None:
        found = mask(**given)
        if found is None:
            return None
        return [any(found[i - i % size : i - i % size + size]) for i in range(len(found))]

    return masked


class TieringHybrid(TieringScheduler, OffloadingHybrid):
    """With an OffloadingConnector over its tiering manager."""


def fencing(scheduler: Any) -> Any:
    """The connector's building of stores; those of an ended request are flushed if this batch takes their blocks.

    See vllm-final-tail-given-away in known.toml.
    """
    build = scheduler._build_store_jobs

    def built(output: Any) -> Any:
        jobs, taken = build(output), scheduler._current_batch_allocated_block_ids
        for id, job in jobs.items():
            ended = scheduler._req_status[job.req_id].req.is_finished()
            if ended and not taken.isdisjoint(scheduler._jobs[id].fenced_block_ids or ()):
                scheduler._current_batch_jobs_to_flush.add(id)
        return jobs

    return built


make_window = partial(SimpleHybrid, groups=WINDOW)
make_windows = partial(SimpleHybrid, groups=WINDOWS)
make_two_sizes = partial(SimpleHybrid, groups=TWO_SIZES)
make_chunked = partial(SimpleHybrid, groups=CHUNKED)
make_state_fine = partial(SimpleHybrid, groups=(FULL, STATE), fine=True, spare=2, retention=0)
make_state = partial(SimpleHybrid, groups=(FULL, STATE))
make_state_window = partial(SimpleHybrid, groups=(*WINDOW, STATE))
make_sparse = partial(SimpleHybrid, groups=WINDOW, retention=0)
make_state_sparse = partial(SimpleHybrid, groups=(FULL, STATE), retention=0)
make_unrepaired = partial(SimpleHybrid, groups=WINDOW, lazy=True, retention=0, repaired=False)
make_stale = partial(SimpleHybrid, groups=WINDOW, stale=True)
make_lazy_window = partial(SimpleHybrid, groups=WINDOW, lazy=True)
make_async_window = partial(SimpleHybrid, groups=WINDOW, asynchronous=True)
make_offloading_window = partial(OffloadingHybrid, groups=WINDOW)
make_offloading_two_sizes = partial(OffloadingHybrid, groups=TWO_SIZES)
make_offloading_unrepaired = partial(OffloadingHybrid, groups=TWO_SIZES, repaired=False)
make_offloading_windows = partial(OffloadingHybrid, groups=WINDOWS)
make_offloading_sparse = partial(OffloadingHybrid, groups=WINDOW, retention=0)
make_offloading_state = partial(OffloadingHybrid, groups=(FULL, STATE))
make_offloading_state_inside = partial(OffloadingHybrid, groups=(FULL, STATE), inside=True, retention=0)
make_offloading_async_window = partial(OffloadingHybrid, groups=WINDOW, asynchronous=True)
make_offloading_prompt_window = partial(OffloadingHybrid, groups=WINDOW, retention=0, prompt_only=True)
make_offloading_arc_window = partial(OffloadingHybrid, groups=WINDOW, eviction="arc")
make_chunks_window = partial(OffloadingHybrid, groups=WINDOW, per_chunk=2)
make_chunks_parts = partial(OffloadingHybrid, groups=WINDOW, per_chunk=2, whole=False)
make_chunks_windows = partial(OffloadingHybrid, groups=WINDOWS, per_chunk=2)
make_chunks_state = partial(OffloadingHybrid, groups=(FULL, STATE), per_chunk=2)
make_tiering_window = partial(TieringHybrid, groups=WINDOW)
make_tiering_state = partial(TieringHybrid, groups=(FULL, STATE))
