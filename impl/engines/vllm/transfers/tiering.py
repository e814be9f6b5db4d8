"""kv_scheduler with two tiers on vLLM's Scheduler (0.33.0): its OffloadingConnector over its TieringOffloadingManager.

Scheduler and connector are those of offloading.py. Real is the manager, too, with its CPU tier, its jobs, promotions
and cascades; the second tier is ours, a storage that finds chunks by their keys. What the CPU tier has got is copied to
the storage (a cascade). A request whose chunk is only in the storage is passed over while that is copied to the CPU
tier (a promotion), and others overtake it; whoever needs the same chunk waits for the same promotion. Both are moves.
The manager hears of their ends in its next step.

A promotion that fails part of the way keeps what came before, as the engine's own storages have it. What could not be
read is forgotten. A reset leaves the storage to whoever owns it (vllm-tiering-kept-below); here it is emptied then.
Source: vllm/v1/kv_offload/tiering/manager.py, base.py and fs/manager.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from kvlockstep.impl.engines.vllm.tier import base
from kvlockstep.impl.engines.vllm.tiering import managers, tiers
from kvlockstep.impl.engines.vllm.transfers.offloading import OffloadingScheduler
from kvlockstep.impl.engines.vllm.transfers.offloading_engine import CPU
from kvlockstep.reference.kv.transfers import TierUnits, Transfer
from kvlockstep.reference.kv_manager.tier import Tier

STORAGE = "storage"


class Job(NamedTuple):
    """A job of the manager in flight: the chunks that are copied for it, the first ones of its keys if it promotes."""

    given: Any
    keys: list[Any]
    units: list[int]


class Storage(tiers.SecondaryTierManager):  # type: ignore[misc, name-defined]
    """`units` chunks, of which the least recently used one goes first. It may want each chunk for each request.

    `submitted` are the moves that nobody has taken yet, `jobs` those in flight, and `finished` the results that the
    manager has not heard.
    """

    medium = base.Medium.STORAGE

    def __init__(self, units: int, view: memoryview, policy: Any) -> None:
        super().__init__(None, view, STORAGE)
        self.size, self._policy = units, policy
        self.submitted: list[Transfer] = []
        self.jobs: dict[Hashable, Job] = {}
        self.finished: list[Any] = []
        self.clear()

    def clear(self) -> None:
        self.tier = Tier(self.size)

    def lookup(self, key: Any, req_context: Any) -> Any:
        return base.LookupResult.MISS if self.tier.find(key) is None else base.LookupResult.HIT

    def submit_store(self, job_metadata: Any) -> None:
        job, pairs = Job(job_metadata, [], []), list[tuple[int, int]]()
        for key, chunk in zip(job_metadata.keys, job_metadata.chunk_ids.tolist(), strict=True):
            unit = None if self.tier.knows(key) else self.tier.begin_store(key)
            if unit is not None:
                job.keys.append(key)
                job.units.append(unit)
                pairs.append((chunk, unit))
        self._submit(job, STORAGE, CPU, pairs, ())

    def submit_load(self, job_metadata: Any) -> None:
        keys = list(itertools.takewhile(lambda key: self.tier.find(key) is not None, job_metadata.keys))
        job = Job(job_metadata, keys, [unit for unit in map(self.tier.find, keys) if unit is not None])
        for key in keys:
            self.tier.begin_load(key)
        pairs = list(zip(job.units, job_metadata.chunk_ids.tolist(), strict=False))
        self._submit(job, CPU, STORAGE, pairs, [job_metadata.req_context.req_id])

    def get_finished_jobs(self) -> Iterable[Any]:
        finished, self.finished = self.finished, []
        return finished

    def on_new_request(self, req_context: Any) -> Any:
        return base.RequestOffloadingContext(self._policy)

    def drain_jobs(self) -> None:
        if self.jobs:
            raise RuntimeError("a reset comes with moves in flight")

    def end(self, id: Hashable, written: int) -> None:
        """A move has ended, with so many chunks written."""
        job = self.jobs.pop(id)
        for n, (key, unit) in enumerate(zip(job.keys, job.units, strict=True)):
            if job.given.is_promotion:
                # Only what was come to is known to be missing.
                self.tier.end_load(key, unit, n != written)
            else:
                self.tier.end_store(key, n < written)
        self._finish(job, written)

    def _submit(self, job: Job, to: str, of: str, pairs: list[tuple[int, int]], rids: Sequence[str]) -> None:
        if not pairs:
            self._finish(job, 0)
            return
        id = STORAGE, job.given.job_id
        self.jobs[id] = job
        self.submitted.append(Transfer(id, "move", to, pairs, rids, source=of))

    def _finish(self, job: Job, written: int) -> None:
        """The manager will hear that a job is over."""
        whole = written == (len(job.given.keys) if job.given.is_promotion else len(job.keys))
        there = tuple(job.keys[:written]) if job.given.is_promotion and not whole else None
        self.finished.append(tiers.JobResult(job.given.job_id, whole, there or None))


class KeepingManager(managers.TieringOffloadingManager):  # type: ignore[misc, name-defined]
    """Evicts nothing that was found for a request which has to come back: see vllm-promotions-evict-each-other.

    `found` are those keys, by request.
    """

    def __init__(self, primary: Any, secondary: list[Any]) -> None:
        super().__init__(primary, secondary)
        self.found: dict[str, set[Any]] = {}
        evict = primary._policy.evict
        primary._policy.evict = lambda n, protected: evict(n, protected.union(*self.found.values()))

    def lookup(self, key: Any, req_context: Any, **options: Any) -> Any:
        result = super().lookup(key, req_context, **options)
        if result is not base.LookupResult.MISS:
            self.found.setdefault(req_context.req_id, set()).add(key)
        return result

    def on_request_finished(self, req_context: Any, **options: Any) -> None:
        super().on_request_finished(req_context, **options)
        self.found.pop(req_context.req_id, None)

    def reset_cache(self) -> None:
        super().reset_cache()
        self.found.clear()


class TieringScheduler(OffloadingScheduler):
    """A scheduler whose CPU tier is half as large as the pool, over a storage of twice the pool.

    If `by_request`, the storage wants all chunks of each request, those too that are in the CPU tier already. Unless it
    is `keeping`, the chunks that are promoted for a request may evict one another.
    """

    moves = partial_loads = True
    loses = (STORAGE,)
    fails = {STORAGE: "any"}

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        by_request: bool = False,
        keeping: bool = True,
        **options: Any,
    ) -> None:
        self._keeping = keeping
        policy = base.OffloadPolicy
        self._policy_below = policy.REQUEST_LEVEL if by_request else policy.CHUNK_LEVEL
        super().__init__(blocks, block_size, budget, running, half=True, **options)

    def connect(self, config: Any) -> Any:
        connector = super().connect(config)
        self.tiers[STORAGE] = self._storage.size
        if self._keeping:
            connector.get_num_new_matched_tokens = answering(connector)
        return connector

    def _make_manager(self) -> Any:
        view = memoryview(bytearray(self._chunks)).cast("B", (self._chunks, 1))
        region = SimpleNamespace(create_kv_memoryview=lambda: view)
        primary = managers.CPUPrimaryTierOffloadingManager(self._chunks, region, self._eviction)
        self._storage = Storage(4 * self._chunks, view, self._policy_below)
        kind = KeepingManager if self._keeping else managers.TieringOffloadingManager
        return kind(primary, [self._storage])

    @property
    def _cpu(self) -> Any:
        return self._manager.primary_tier

    def poll(self) -> Collection[str]:
        """A job that has nothing to copy is over at once, and the engine makes steps until it has heard of all."""
        ended = list(super().poll())
        while self._storage.finished:
            ended += super().poll()
        return ended

    def transfers(self) -> Sequence[Transfer]:
        moves, self._storage.submitted = self._storage.submitted, []
        return [*super().transfers(), *moves]

    def complete(self, id: Hashable, ok: bool, written: int = 0) -> None:
        if id in self._storage.jobs:
            self._storage.end(id, written)
        else:
            super().complete(id, ok)

    def tier(self, name: str) -> TierUnits:
        return self._storage.tier.units() if name == STORAGE else super().tier(name)

    def reset(self) -> None:
        super().reset()
        self._storage.clear()


def answering(connector: Any) -> Any:
    """The connector's answer to how much a request may load; with one the request has not to come back."""
    find, found = connector.get_num_new_matched_tokens, connector.connector_scheduler.manager.found

    def answer(request: Any, computed: int) -> tuple[int | None, bool]:
        tokens, apart = find(request, computed)
        if tokens is not None:
            found.pop(request.request_id, None)
        return tokens, apart

    return answer


make = TieringScheduler
make_by_request = partial(TieringScheduler, by_request=True)
make_async = partial(TieringScheduler, asynchronous=True)
make_inside = partial(TieringScheduler, inside=True)
make_arc = partial(TieringScheduler, eviction="arc")
make_evicting = partial(TieringScheduler, keeping=False)
