"""kv_manager on the KV cache manager of vLLM's v1 engine (0.33.0), one group of full attention.

Calls come in the order of the engine's own scheduler: a waiting request is looked up with `get_computed_blocks`
and given slots with `allocate_slots` in one go, its whole sequence having to fit (`scheduler_reserve_full_isl`, the
default); running requests call `allocate_slots` alone, with as many new tokens as chunk, decode and drafts need.
`num_computed_tokens` advances when the batch is launched and goes back by the rejected drafts. Preemption is `free`
with `num_computed_tokens = 0`. Full blocks are published when their slots are allocated, before they are computed.
Of equal blocks each copy is published, with an event for its store and another for its removal.
Source: vllm/v1/core/sched/scheduler.py, schedule, _update_after_schedule, update_from_output and _preempt_request.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.impl.engines.vllm.events import received
from kvlockstep.impl.slots import slots_of
from kvlockstep.reference.kv_manager.contract import Event

MAX_MODEL_LEN = 1 << 20


class VllmKVManager:
    """One KVCacheManager. With `adapters` an extra key is a LoRA adapter, otherwise a cache salt.

    There is no withdrawal: the engine's scheduler has none apart from preemption by priority, which leaves published
    what it never computed (see known.toml and the scheduler's own adapter).
    """

    engine = "vllm"
    version = vllm.ENGINE.version
    chunk = extra_key = early_publish = True
    can_reset = True
    hash_trust = "none"

    def __init__(
        self, blocks: int, block_size: int, caching: bool = True, adapters: bool = False, listener: str = "counting"
    ) -> None:
        self.block_size = block_size
        self.total = blocks * block_size
        self.prefix_cache = self.can_evict_all = caching
        self.event_listener = listener if caching else None
        self._manager = vllm.manager.KVCacheManager(
            vllm.cache_config(blocks, block_size),
            max_model_len=MAX_MODEL_LEN,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
            enable_caching=caching,
            enable_kv_cache_events=caching,
        )
        self._pool = self._manager.block_pool
        self._hasher = vllm.block_hasher(block_size) if caching else None
        self._adapters = adapters
        self._forget_requests()

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        self._start_step()
        request = self._preempted.get(rid) or vllm.make_request(rid, tokens, self._hasher, extra_key, self._adapters)
        hit, cached, request.shared_prefix_boundary = self._manager.get_computed_blocks(request)
        new = min(n, request.num_tokens - cached)
        running = bool(self._running)
        if not self._allocate(request, new, cached, hit, full_sequence_must_fit=True, has_scheduled_reqs=running):
            return None
        self._preempted.pop(rid, None)
        self._running[rid] = request
        request.status = vllm.RUNNING
        request.num_computed_tokens = cached
        return int(cached)

    def append(self, rid: str, token: int) -> None:
        self._running[rid].append_output_token_ids(token)

    def reserve(self, rid: str, n: int) -> bool:
        self._start_step()
        return self._allocate(self._running[rid], n)

    def copies(self) -> list[tuple[int, int]]:
        copies, retained = self._manager.take_kv_cache_block_copies()
        self._pool.free_blocks(retained)
        size = self.block_size
        return [(c.src_block_id * size + i, c.dst_block_id * size + i) for c in copies for i in range(size)]

    def launch(self) -> None:
        self._manager.take_new_block_ids()
        for rid, n in self._scheduled.items():
            self._running[rid].num_computed_tokens += n
            self._running[rid].num_in_flight_tokens += n
        self._scheduling = False

    def slots(self, rid: str) -> list[int]:
        return slots_of(self.blocks(rid), self.block_size)

    def blocks(self, rid: str) -> list[int]:
        """The block table: block i holds positions [i * block_size, (i + 1) * block_size)."""
        table: list[int] = self._manager.get_block_ids(rid)[0]
        return table

    def commit(self, rid: str, n: int) -> None:
        request, scheduled = self._running[rid], self._scheduled.pop(rid)
        request.num_in_flight_tokens -= scheduled
        request.num_computed_tokens -= scheduled - n
        # With drafts the engine publishes accepted tokens here; those that allocate_slots knew are published already.
        self._manager.cache_blocks(request, request.num_computed_tokens)

    def finish(self, rid: str) -> None:
        self._scheduled.pop(rid, None)
        self._manager.free(self._running.pop(rid))

    def abort(self, rid: str) -> None:
        self.finish(rid)

    def preempt(self, rid: str) -> None:
        request = self._running.pop(rid)
        self._manager.free(request)
        request.status = vllm.PREEMPTED
        request.num_computed_tokens = 0
        self._preempted[rid] = request

    def evict_all(self) -> None:
        self._manager.evict_blocks({block.block_id for block in self._pool.blocks})

    def reset(self) -> None:
        for rid in list(self._running):
            self.finish(rid)
        self._manager.reset_prefix_cache()
        self._forget_requests()

    def events(self) -> list[Event]:
        return received(self._manager.take_events())

    def avail(self) -> int:
        return int(self._pool.get_num_free_blocks()) * self.block_size

    def free_now(self) -> int:
        return len(self.free_blocks()) * self.block_size

    def free_slots(self) -> Iterable[int] | None:
        return slots_of(self.free_blocks(), self.block_size)

    def free_blocks(self) -> list[int]:
        """The blocks in the free queue that no lookup can hit."""
        queue = self._pool.free_block_queue.get_all_free_blocks()
        return [block.block_id for block in queue if block.block_hash is None]

    def _forget_requests(self) -> None:
        self._running: dict[str, Any] = {}
        self._preempted: dict[str, Any] = {}
        self._scheduled: dict[str, int] = {}
        self._scheduling = False

    def _start_step(self) -> None:
        if not self._scheduling:
            self._manager.new_step_starts()
            self._scheduling = True

    def _allocate(self, request: Any, n: int, cached: int = 0, hit: Any = None, **admission: bool) -> bool:
        if self._manager.allocate_slots(request, n, cached, hit, **admission) is None:
            return False
        self._scheduled[request.request_id] = n
        return True


make = VllmKVManager
make_uncached = partial(VllmKVManager, caching=False)
make_lora = partial(VllmKVManager, adapters=True)
make_set_of_hashes = partial(VllmKVManager, listener="set")
