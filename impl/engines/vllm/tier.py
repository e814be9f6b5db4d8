"""kv_tier on vLLM's CPUOffloadingManager, the index of its CPU tier, with the policies LRU and ARC.

Read from vllm/v1/kv_offload/cpu/manager.py and its caller, .../kv_connector/v1/offloading/scheduler.py. Real are the
manager and its policies. A chunk's extra key is its KV group, which vLLM's keys have. An owner is a request, whose
context begins with its first call and ends with `release`.

The manager works on keys, so the plans are kept here; whoever calls it completes each job once, and drops completions
of before a reset, which therefore never comes with a plan in flight. A lookup touches nothing and pins nothing: the
scheduler prepares the load in the same step. `reset_cache` announces nothing: the block pool does, which the engine
resets in the same call (Scheduler.reset_prefix_cache), and for which `events` stands here.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.vllm.modules import ENGINE
from kvlockstep.reference.kv_tier.contract import (
    HIT,
    MISS,
    PENDING,
    AllChunksCleared,
    ChunkRemoved,
    ChunkStored,
    Event,
    Key,
    LoadPlan,
    StorePlan,
)

BARE = ("vllm.v1.kv_offload", "vllm.v1.kv_offload.cpu", "vllm.v1.kv_offload.cpu.policies")

with without_the_rest(ENGINE, BARE, ()):
    base = importlib.import_module("vllm.v1.kv_offload.base")
    cpu = importlib.import_module("vllm.v1.kv_offload.cpu.manager")

ANSWERS: dict[Any, Literal["miss", "pending", "hit"]] = {
    base.LookupResult.MISS: MISS,
    base.LookupResult.HIT_PENDING: PENDING,
    base.LookupResult.HIT: HIT,
}


class Job(NamedTuple):
    """A plan in flight, in the manager's terms."""

    keys: list[Any]
    context: Any
    loads: bool


class VllmTier:
    """`units` chunks of the CPU tier under a policy, "lru" or "arc"."""

    engine = "vllm"
    version = ENGINE.version
    extra_key = can_reset = announces = True

    def __init__(self, units: int, policy: str = "lru") -> None:
        self.total = units
        self.manager = cpu.CPUOffloadingManager(units, policy, enable_events=True)
        self._contexts: dict[str, Any] = {}
        self._jobs: dict[Hashable, Job] = {}
        self._ids = itertools.count()
        self._cleared = False

    def lookup(self, key: Key, owner: str) -> Literal["miss", "pending", "hit"]:
        offloaded, context = self.named([key], owner)
        return ANSWERS[self.manager.lookup(offloaded[0], context)]

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        offloaded, context = self.named(keys, owner)
        output = self.manager.prepare_store(offloaded, context)
        if output is None:
            return None
        names = dict(zip(offloaded, keys, strict=True))
        plan = self._begin(Job(output.keys_to_store, context, loads=False))
        units = output.store_spec.block_ids.tolist()
        stored = {names[key]: unit for key, unit in zip(output.keys_to_store, units, strict=True)}
        return StorePlan(plan, stored, [chunk_key(key) for key in output.evicted_keys])

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        offloaded, context = self.named(keys, owner)
        spec = self.manager.prepare_load(offloaded, context)
        plan = self._begin(Job(offloaded, context, loads=True))
        return LoadPlan(plan, dict(zip(keys, spec.block_ids.tolist(), strict=True)))

    def complete(self, plan: Hashable, ok: bool) -> None:
        job = self._jobs.pop(plan, None)
        if job is not None and job.loads:
            self.manager.complete_load(job.keys, job.context)
        elif job is not None:
            self.manager.complete_store(job.keys, job.context, ok)

    def touch(self, keys: Sequence[Key]) -> None:
        offloaded, context = self.named(keys, "touch")
        self.manager.touch(offloaded, context)

    def release(self, owner: str) -> None:
        if owner in self._contexts:
            self.manager.on_request_finished(self._contexts.pop(owner))

    def reset(self) -> None:
        self.manager.reset_cache()
        self._cleared = True

    def avail(self) -> int:
        manager = self.manager
        return int(manager._get_num_free_chunks() + manager._num_evictable_cache_chunks)

    def free_units(self) -> list[int]:
        manager = self.manager
        return [*manager._free_list, *range(manager._num_allocated_chunks, self.total)]

    def events(self) -> Iterator[Event]:
        for event in self.manager.take_events():
            keys = tuple(map(chunk_key, event.keys))
            yield ChunkRemoved(keys) if event.removed else ChunkStored(keys)
        if self._cleared:
            self._cleared = False
            yield AllChunksCleared()

    def _begin(self, job: Job) -> int:
        plan = next(self._ids)
        self._jobs[plan] = job
        return plan

    def context(self, owner: str) -> Any:
        """The context of an owner, a new one where it has none."""
        if owner not in self._contexts:
            self._contexts[owner] = base.ReqContext(owner)
            self.manager.on_new_request(self._contexts[owner])
        return self._contexts[owner]

    def named(self, keys: Sequence[Key], owner: str) -> tuple[list[Any], Any]:
        """The manager's keys, and the context of the owner with their positions."""
        context = self.context(owner)
        offloaded = [offload_key(key) for key in keys]
        for key, name in zip(offloaded, keys, strict=True):
            context.set_offload_key_position(key, name.hash)
        return offloaded, context


def offload_key(key: Key) -> Any:
    """The manager's key of a chunk: its hash and its group."""
    return base.make_offload_key(key.hash.to_bytes(32, "big"), 0 if key.extra_key is None else 1 + key.extra_key)


def chunk_key(key: Any) -> Key:
    """The chunk of a key of the manager."""
    group = base.get_offload_group_idx(key)
    return Key(int.from_bytes(base.get_offload_block_hash(key), "big"), group - 1 if group else None)


def make_arc(units: int) -> VllmTier:
    """The tier under ARC."""
    return VllmTier(units, "arc")
