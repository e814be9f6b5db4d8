"""kv_tier on vLLM's TieringOffloadingManager: the CPU tier, with a second tier of the machine's below it.

Read from vllm/v1/kv_offload/tiering/manager.py and base.py, and their caller,
.../kv_connector/v1/offloading/scheduler.py. Real are the manager with its jobs, cascades and promotions, and the CPU
tier under LRU. The units are those of the CPU tier, which a request can load from.

A lookup that finds a chunk below makes room for it and promotes it, which the contract has as a store: its bytes come
from below. So a lookup asks the CPU tier alone, by the request's tier filter. A store promotes what is below, with the
filter open, and prepares the rest. It may leave out what finds no room. Each call is a step of the scheduler. A
promotion ends with its plan. A cascade ends when the manager asks next, which it does before it looks for room: the
units that only cascades hold are available.

The second tier is made here. It copies as late as it may, so that a unit that a job does not hold is seen in the bytes.
It forgets its chunks at a reset; the manager leaves that to whoever owns it, see `make_kept`.
"""

from __future__ import annotations

import importlib
import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.vllm.modules import ENGINE
from kvlockstep.impl.engines.vllm.tier import ANSWERS, BARE, base, chunk_key, offload_key
from kvlockstep.reference.kv_tier.contract import (
    AllChunksCleared,
    ChunkRemoved,
    ChunkStored,
    Event,
    Key,
    LoadPlan,
    StorePlan,
)

# A chunk is its bytes behind their length.
CHUNK = 128

with without_the_rest(ENGINE, (*BARE, "vllm.v1.kv_offload.tiering"), ("vllm.v1.kv_offload.cpu.shared_offload_region",)):
    tiers = importlib.import_module("vllm.v1.kv_offload.tiering.base")
    managers = importlib.import_module("vllm.v1.kv_offload.tiering.manager")

HERE_ALONE = base.TierFilter()
STEP = base.ScheduleEndContext((), ())


class SecondTier(tiers.SecondaryTierManager):  # type: ignore[misc, name-defined]
    """Twice as many chunks as the CPU tier, of which the oldest goes first.

    `stores` and `loads` are the jobs in flight; `ended` says of loads how they end.
    """

    medium = base.Medium.STORAGE

    def __init__(self, units: int, memory: bytearray, view: memoryview, policy: Any) -> None:
        super().__init__(None, view, "second")
        self.chunks: dict[Any, bytes] = {}
        self.stores: dict[int, Any] = {}
        self.loads: dict[int, tuple[Any, list[bytes]]] = {}
        self.ended: dict[int, bool] = {}
        self._most, self._memory, self._policy = 2 * units, memory, policy

    def lookup(self, key: Any, req_context: Any) -> Any:
        return base.LookupResult.HIT if key in self.chunks else base.LookupResult.MISS

    def submit_store(self, job_metadata: Any) -> None:
        self.stores[job_metadata.job_id] = job_metadata

    def submit_load(self, job_metadata: Any) -> None:
        self.loads[job_metadata.job_id] = job_metadata, [self.chunks[key] for key in job_metadata.keys]

    def get_finished_jobs(self) -> Iterable[Any]:
        for number, job in self.stores.items():
            for key, unit in zip(job.keys, job.chunk_ids.tolist(), strict=True):
                self.chunks[key] = bytes(self._memory[unit * CHUNK : (unit + 1) * CHUNK])
            yield tiers.JobResult(number, True)
        self.stores.clear()
        while len(self.chunks) > self._most:
            del self.chunks[next(iter(self.chunks))]
        for number, ok in self.ended.items():
            job, chunks = self.loads.pop(number)
            for unit, chunk in zip(job.chunk_ids.tolist(), chunks, strict=True):
                self._memory[unit * CHUNK : unit * CHUNK + CHUNK // 2] = chunk[: CHUNK // 2]
                if ok:
                    self._memory[unit * CHUNK : (unit + 1) * CHUNK] = chunk
            yield tiers.JobResult(number, ok)
        self.ended.clear()

    def on_new_request(self, req_context: Any) -> Any:
        return base.RequestOffloadingContext(self._policy)

    def drain_jobs(self) -> None:
        """Every job ends when it is asked for; `reset` is not called with a load in flight."""


class Job(NamedTuple):
    """A plan in flight: the units of its chunks, those of them that the GPU writes, and the loads from below."""

    units: dict[Key, int]
    loads: bool
    context: Any
    written: Sequence[Any]
    promotions: frozenset[int]


class VllmTieringTier:
    """`units` chunks of the CPU tier over a second one, which wants each chunk once, or for each request."""

    engine = "vllm"
    version = ENGINE.version
    extra_key = can_reset = announces = skips = holds_bytes = True
    spares_offered = False
    keeps_below = False

    def __init__(self, units: int, policy: Any = base.OffloadPolicy.CHUNK_LEVEL) -> None:
        self.total = units
        self._memory = bytearray(units * CHUNK)
        view = memoryview(self._memory).cast("B", (units, CHUNK))
        region = SimpleNamespace(create_kv_memoryview=lambda: view)
        self.primary = managers.CPUPrimaryTierOffloadingManager(units, region, enable_events=True)
        self.below = SecondTier(units, self._memory, view, policy)
        self.manager = managers.TieringOffloadingManager(self.primary, [self.below])
        self._contexts: dict[str, Any] = {}
        self._jobs: dict[Hashable, Job] = {}
        self._events: list[Event] = []
        self._ids = itertools.count()

    def lookup(self, key: Key, owner: str) -> Literal["miss", "pending", "hit"]:
        answer = self.manager.lookup(self._named(key, owner), self._context(owner))
        self.manager.on_schedule_end(STEP)
        return ANSWERS[answer]

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        context, told, in_flight = self._context(owner), len(self._events), set(self.below.loads)
        names = [self._named(key, owner) for key in keys]
        misses = [name for name in names if self.primary.lookup(name, context) is base.LookupResult.MISS]
        promoted = [name for name in names if self._promote(name, context)]
        output = self.manager.prepare_store([name for name in names if name not in promoted], context)
        self.manager.on_schedule_end(STEP)
        written = [] if output is None else output.keys_to_store
        self._listen()
        if misses and not promoted and not written:
            return None
        units = {chunk_key(name): self.primary._policy.get(name).chunk_id for name in (*promoted, *written)}
        evicted = [key for event in self._events[told:] if isinstance(event, ChunkRemoved) for key in event.keys]
        promotions = frozenset(self.below.loads) - in_flight
        return StorePlan(self._begin(Job(units, False, context, written, promotions)), units, evicted)

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        names, context = [self._named(key, owner) for key in keys], self._context(owner)
        numbers = self.manager.prepare_load(names, context).chunk_ids.tolist()
        units = dict(zip(keys, numbers, strict=True))
        return LoadPlan(self._begin(Job(units, True, context, names, frozenset())), units)

    def write(self, plan: Hashable, key: Key, data: bytes) -> None:
        job = self._jobs[plan]
        if offload_key(key) in job.written:
            packed, start = len(data).to_bytes(2, "big") + data, job.units[key] * CHUNK
            self._memory[start : start + len(packed)] = packed

    def read(self, plan: Hashable, key: Key) -> bytes | None:
        start = self._jobs[plan].units[key] * CHUNK
        length = int.from_bytes(self._memory[start : start + 2], "big")
        return bytes(self._memory[start + 2 : start + 2 + length])

    def complete(self, plan: Hashable, ok: bool) -> None:
        job = self._jobs.pop(plan, None)
        if job is None:
            return
        if job.loads:
            self.manager.complete_load(job.written, job.context)
            return
        self.below.ended.update(dict.fromkeys(job.promotions, ok))
        self.manager.on_schedule_end(STEP)
        if job.written:
            self.manager.complete_store(job.written, job.context, ok)
        self._listen()

    def touch(self, keys: Sequence[Key]) -> None:
        self.manager.touch([self._named(key, "touch") for key in keys], self._context("touch"))

    def release(self, owner: str) -> None:
        if owner in self._contexts:
            self.manager.on_request_finished(self._contexts.pop(owner))

    def reset(self) -> None:
        self.manager.reset_cache()
        self.manager.on_reset_flushed()
        if not self.keeps_below:
            self.below.chunks.clear()
        self._events.append(AllChunksCleared())

    def avail(self) -> int:
        cascades = Counter(key for job in self.below.stores.values() for key in job.keys)
        held = [key for key, readers in cascades.items() if self.primary._policy.get(key).ref_cnt == readers]
        return int(self.primary._get_num_free_chunks() + self.primary._num_evictable_cache_chunks) + len(held)

    def free_units(self) -> list[int]:
        primary = self.primary
        return [*primary._free_list, *range(primary._num_allocated_chunks, self.total)]

    def events(self) -> Iterator[Event]:
        self._listen()
        events, self._events = self._events, []
        yield from events

    def _promote(self, name: Any, context: Any) -> bool:
        """Whether a chunk that is only below has found room and is on its way."""
        if name not in self.below.chunks or self.primary.lookup(name, context) is not base.LookupResult.MISS:
            return False
        context.load_tier_filter = base.TierFilter.ALL
        answer = self.manager.lookup(name, context)
        context.load_tier_filter = HERE_ALONE
        return answer is base.LookupResult.HIT_PENDING

    def _listen(self) -> None:
        for event in self.manager.take_events():
            keys = tuple(map(chunk_key, event.keys))
            # A store that has failed was never heard of.
            if not event.metadata_only:
                self._events.append(ChunkRemoved(keys) if event.removed else ChunkStored(keys))

    def _begin(self, job: Job) -> int:
        plan = next(self._ids)
        self._jobs[plan] = job
        return plan

    def _context(self, owner: str) -> Any:
        """The context of an owner, which no request had before it where it is new."""
        if owner not in self._contexts:
            context = base.ReqContext(f"{owner}-{next(self._ids)}", load_tier_filter=HERE_ALONE)
            self._contexts[owner] = context
            self.manager.on_new_request(context)
        return self._contexts[owner]

    def _named(self, key: Key, owner: str) -> Any:
        """The manager's key of a chunk, whose position the owner's context knows."""
        name = offload_key(key)
        self._context(owner).set_offload_key_position(name, key.hash)
        return name


class VllmTieringTierKept(VllmTieringTier):
    """The same over a second tier that nobody empties at a reset."""

    keeps_below = True


def make(units: int) -> VllmTieringTier:
    return VllmTieringTier(units)


def make_by_request(units: int) -> VllmTieringTier:
    """The second tier wants all chunks of each request, those too that are there already."""
    return VllmTieringTier(units, base.OffloadPolicy.REQUEST_LEVEL)


def make_kept(units: int) -> VllmTieringTier:
    return VllmTieringTierKept(units)
