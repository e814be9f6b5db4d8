"""A KV connector for vLLM (0.33.0) on its public base class, with a tier of its own, whose copies somebody else makes.

Scheduler and worker have one instance each in the engine; here one instance is both. Its scheduler side finds blocks in
the tier by their hash and asks for stores and loads. Its worker side notes what it submits, and reports what it was
told: `submitted` hands out the transfers, `complete` ends one.

Stores are submitted behind the batch that computes their blocks; or, if `at_end`, all at once when a request has ended
by itself, as a producer of KV does. In both cases a request that ends with stores in flight keeps its blocks until
`finished_sending` names it, and the stores of a preempted request are waited for before the next batch writes.
Loads run between the batches, with their request waiting, or if `inside` in front of the batch that needs them.
Source: vllm/distributed/kv_transfer/kv_connector/v1/base.py; vllm/v1/worker/gpu/kv_connector.py, ActiveKVConnector.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.impl.engines.vllm.transfers.connected import ConnectedScheduler
from kvlockstep.impl.engines.vllm.transfers.failed_loads import FailedLoads
from kvlockstep.reference.kv.transfers import TierUnits, Transfer
from kvlockstep.reference.kv_manager.tier import Tier

TIER = "connector"


@dataclass
class Job:
    """A store or load of one request: the keys of its blocks, the units of the tier, and the blocks of the pool.

    `written` is None until it has ended, then the number of its first blocks that were written.
    """

    rid: str
    loads: bool
    keys: list[Any]
    units: list[int]
    blocks: list[int]
    inside: bool = False
    written: int | None = None

    @property
    def failed(self) -> bool:
        """True if it has ended, and not all was written."""
        return self.written is not None and self.written < len(self.blocks)


class TierConnector(vllm.connector.KVConnectorBase_V1):  # type: ignore[misc]
    """Blocks of `block_size` slots in a tier of `units`, found by the block hashes of vLLM's requests."""

    def __init__(self, units: int, block_size: int, inside: bool, at_end: bool, transfer_config: Any) -> None:
        # The base class reads the whole configuration and warns that it may change; it keeps these.
        self._kv_transfer_config = transfer_config
        self._connector_metadata = None
        self.tier = Tier(units)
        self._units, self._block_size, self._inside, self._at_end = units, block_size, inside, at_end
        self._ids = itertools.count()
        self._matched: dict[str, tuple[int, list[int]]] = {}
        self._noted: list[tuple[Hashable, Job]] = []
        self._jobs: dict[Hashable, Job] = {}
        self._reached: dict[str, int] = {}
        self._owes: dict[str, set[Hashable]] = {}
        self._requests: dict[str, Any] = {}
        self._submitted: list[Transfer] = []
        self._fence: list[Hashable] = []
        self._ended: list[Hashable] = []
        self._own: deque[set[Hashable]] = deque()
        self._gone: set[str] = set()

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a store that does not happen is a hit that does not happen

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        return (0,)

    # The scheduler's side.

    def on_new_request(self, request: Any) -> None:
        self._requests[request.request_id] = request

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        first = num_computed_tokens // self._block_size
        # A batch needs a token to compute. What is loaded between batches may be all; the last token is computed again.
        # Of a request with one token nothing would be left, and the scheduler would begin with it anew, for ever.
        most = (request.num_tokens - (self._inside or request.num_tokens == 1)) // self._block_size
        found = map(self.tier.find, request.block_hashes[first:most])
        units = [unit for unit in itertools.takewhile(lambda unit: unit is not None, found) if unit is not None]
        self._matched[request.request_id] = first, units
        return len(units) * self._block_size, bool(units) and not self._inside

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if not num_external_tokens:
            return
        first, units = self._matched[request.request_id]
        n = num_external_tokens // self._block_size
        keys = request.block_hashes[first : first + n]
        for key in keys:
            self.tier.begin_load(key)
        table = blocks.get_block_ids()[0][first : first + n]
        self._note(Job(request.request_id, True, keys, units[:n], table, self._inside))

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self._fence = []
        for rid in scheduler_output.preempted_req_ids:
            self._fence += [id for id in self._owes.pop(rid, ()) if id in self._jobs]
            self._reached.pop(rid, None)
        self._fence += [id for id, job in self._noted if job.inside]
        if not self._at_end:
            for rid, n in scheduler_output.num_scheduled_tokens.items():
                self._store_computed(
                    self._requests[rid], n, scheduler_output.kv_connector_block_state.resolve_block_ids(rid)[0]
                )
        # One load inside the batch brings all loads of this step in front of it.
        self._submit(scheduler_output.has_sync_kv_loads)
        self._gone |= scheduler_output.finished_req_ids
        return vllm.connector.KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: Sequence[int]) -> tuple[bool, None]:
        rid = request.request_id
        if self._at_end and request.status in vllm.ENDED_BY_ITSELF:
            stop = min(request.num_computed_tokens // self._block_size, len(request.block_hashes))
            self._store(request, range(stop), block_ids)
        return self._let_go(rid)

    def _let_go(self, rid: str) -> tuple[bool, None]:
        """A request has ended; returns whether its blocks are kept for its stores."""
        self._reached.pop(rid, None)
        self._matched.pop(rid, None)
        del self._requests[rid]
        if not self._owes.get(rid):
            self._owes.pop(rid, None)
            return False, None
        return True, None

    def update_connector_output(self, connector_output: Any) -> None:
        for id in connector_output.kv_connector_worker_meta.ended:
            job = self._jobs.pop(id)
            if job.loads:
                for i, (key, unit) in enumerate(zip(job.keys, job.units, strict=True)):
                    self.tier.end_load(key, unit, i < (job.written or 0))
            else:
                for key in job.keys:
                    self.tier.end_store(key, not job.failed)
                if job.rid in self._owes:
                    self._owes[job.rid].discard(id)

    def reset_cache(self) -> bool:
        self.tier = Tier(self._units)
        return True

    # The worker's side.

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Loads are submitted with the metadata."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """The judge waits for a whole load."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Stores are of whole blocks."""

    def wait_for_save(self) -> None:
        """Stores are waited for only where their blocks are taken away."""

    def submitted(self) -> list[Transfer]:
        """Returns what was submitted since the last time."""
        submitted, self._submitted = self._submitted, []
        return submitted

    def fences(self) -> Collection[Hashable]:
        """Returns what the worker waits for before the next batch: its own loads, and stores of preempted requests."""
        return self._fence

    def complete(self, id: Hashable, written: int) -> None:
        """A transfer has ended, with its first blocks written."""
        self._jobs[id].written = written
        self._ended.append(id)

    def results(self) -> Any:
        """What the worker reports at the end of a step, as ActiveKVConnector.post_forward collects it."""
        output = vllm.outputs.KVConnectorOutput()
        # The loads of a batch that is still in flight are reported with it.
        later = set().union(*self._own) - self._own.popleft()
        ended = [id for id in self._ended if id not in later]
        self._ended = [id for id in self._ended if id in later]
        jobs = [self._jobs[id] for id in ended]
        output.finished_recving = {job.rid for job in jobs if job.loads and not job.inside}
        output.invalid_block_ids = {block for job in jobs if job.loads for block in job.blocks[job.written :]}
        left = {rid: ids.difference(ended) for rid, ids in self._owes.items()}
        output.finished_sending = {rid for rid, ids in left.items() if rid in self._gone and not ids}
        for rid in output.finished_sending:
            del self._owes[rid]
        self._gone &= self._owes.keys()
        output.kv_connector_worker_meta = WorkerMeta(ended)
        return output

    def _store_computed(self, request: Any, n: int, table: Sequence[int]) -> None:
        """Stores the blocks that are full when a batch has computed `n` more tokens."""
        first = self._reached.get(request.request_id, 0)
        stop = min((request.num_computed_tokens + n) // self._block_size, len(request.block_hashes))
        self._store(request, range(first, stop), table)
        self._reached[request.request_id] = max(first, stop)

    def _store(self, request: Any, indices: range, table: Sequence[int]) -> None:
        """Stores blocks that the tier does not know, as far as it has room."""
        self._store_as(request.request_id, [(request.block_hashes[i], table[i]) for i in indices])

    def _store_as(self, rid: str, blocks: Sequence[tuple[Any, int]]) -> None:
        """Stores blocks of a request, each under its key."""
        job = Job(rid, False, [], [], [])
        for key, block in blocks:
            unit = None if self.tier.knows(key) else self.tier.begin_store(key)
            if unit is not None:
                job.keys.append(key)
                job.units.append(unit)
                job.blocks.append(block)
        if job.keys:
            self._owes.setdefault(job.rid, set()).add(self._note(job))

    def _note(self, job: Job) -> Hashable:
        """Takes a job into the metadata of the next step."""
        id = next(self._ids)
        self._noted.append((id, job))
        return id

    def _submit(self, loads_first: bool) -> None:
        """The worker gets the metadata and submits what it asks for."""
        self._own.append({id for id, job in self._noted if job.inside})
        for id, job in self._noted:
            self._jobs[id] = job
            places = list(zip(job.units, job.blocks, strict=True))
            if job.loads:
                transfer = Transfer(id, "load", TIER, places, [job.rid], loads_first)
            else:
                transfer = Transfer(id, "store", TIER, [(block, unit) for unit, block in places])
            self._submitted.append(transfer)
        self._noted.clear()


class WorkerMeta(vllm.connector.KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What the worker's side tells the scheduler's: the transfers that have ended."""

    def __init__(self, ended: list[Hashable]) -> None:
        self.ended = ended

    def aggregate(self, other: Any) -> WorkerMeta:
        return WorkerMeta([*self.ended, *other.ended])


class TierScheduler(ConnectedScheduler):
    """A scheduler with a TierConnector, whose tier is as large as the pool.

    If `repaired`, blocks that could not be loaded, and what was computed behind them, are evicted whoever had them, and
    one who shares them with an aborted request computes them himself: see vllm-failed-load-published and
    vllm-failed-load-shared in known.toml. If `unreserved`, a request whose load has failed in full reserves no blocks
    for itself, and if `requeued`, it waits with those that hold nothing: see failed_loads.py. Without `loaded_first` no
    more is promised than the engine's documentation of `policy` says: see vllm-loaded-before-urgent.
    """

    fails = "any"
    partial_loads = True

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        inside: bool = False,
        at_end: bool = False,
        repaired: bool = False,
        unreserved: bool = True,
        requeued: bool = True,
        loaded_first: bool = True,
        **options: Any,
    ) -> None:
        self.tiers = {TIER: blocks}
        self._unreserved, self._requeued = unreserved, requeued
        self._stand, self._repaired, self.loaded_first = (inside, at_end), repaired, loaded_first
        super().__init__(blocks, block_size, budget, running, **options)
        self._failed_loads = FailedLoads(self._scheduler)

    def connect(self, config: Any) -> TierConnector:
        inside, at_end = self._stand
        self._connector = TierConnector(self.blocks, self.block_size, inside, at_end, config.kv_transfer_config)
        return self._connector

    def results(self, finished: set[str]) -> Any:
        return self._connector.results()

    def abort(self, rid: str) -> None:
        if self._repaired:
            self._pass_on(rid)
        super().abort(rid)

    def _pass_on(self, rid: str) -> None:
        """The first other request that shares a block which `rid` has not computed begins there."""
        scheduler, manager = self._scheduler, self._scheduler.kv_cache_manager
        start = scheduler.requests[rid].num_computed_tokens // self.block_size
        block = manager.get_block_ids(rid)[0][start : start + 1]
        for request in scheduler.running if block else ():
            if request.request_id != rid and manager.get_block_ids(request.request_id)[0][start : start + 1] == block:
                request.num_computed_tokens = min(request.num_computed_tokens, start * self.block_size)
                return

    def _decide(self) -> Any:
        if self._unreserved:
            self._failed_loads.reserve_nothing()
        if self._requeued:
            self._failed_loads.move()
        decided = super()._decide()
        self._failed_loads.keep_places()
        return decided

    def _take_in(self, output: Any, ran: Any) -> list[str]:
        ended = super()._take_in(output, ran)
        invalid = ran.kv_connector_output.invalid_block_ids
        for table in self._tables.values() if self._repaired and invalid else ():
            first = next((i for i, block in enumerate(table) if block in invalid), len(table))
            self._scheduler.kv_cache_manager.evict_blocks(set(table[first:]))
        return ended

    def transfers(self) -> Sequence[Transfer]:
        return self._connector.submitted()

    def waits(self) -> Collection[Hashable]:
        return self._connector.fences()

    def complete(self, id: Hashable, ok: bool, written: int) -> None:
        self._connector.complete(id, written)

    def tier(self, name: str) -> TierUnits:
        return self._connector.tier.units()


make = TierScheduler
make_failing = partial(TierScheduler, policy_on_failure="fail")
make_async = partial(TierScheduler, asynchronous=True)
make_inside = partial(TierScheduler, inside=True, at_end=True, repaired=True)
make_inside_unrepaired = partial(TierScheduler, inside=True, at_end=True)
make_inside_async = partial(TierScheduler, inside=True, at_end=True, repaired=True, asynchronous=True)
make_inside_fail = partial(make_inside, policy_on_failure="fail")
make_priority = partial(TierScheduler, policy="priority")
make_priority_documented = partial(TierScheduler, policy="priority", loaded_first=False)
make_inside_long = partial(make_inside, long_prefill=True)
