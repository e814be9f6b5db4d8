"""kv_schedulers with a tier that take failures of loads in another way than the reference."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from kvlockstep.reference.kv_scheduler.contract import NO_DRAFTS, Batch
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler
from kvlockstep.reference.kv_scheduler.tiered import Load, TieredScheduler


class LoadsInside(TieredScheduler):
    """Loads in front of the batch that needs it, which waits; if that fails, the batch does not count for the request.

    Loaded blocks are published when the batch is back, and nobody shares them before.
    """

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._fence: list[Hashable] = []

    def schedule(self) -> Batch:
        self._fence = []
        return super().schedule()

    def waits(self) -> Collection[Hashable]:
        return self._fence

    def _submit(self, kind: str, pairs: list[tuple[int, int]], *rids: str, before: bool = False) -> Hashable:
        id = super()._submit(kind, pairs, *rids, before=kind == "load")
        if kind == "load":
            self._fence.append(id)
        return id

    def _start(self, job: Job, left: int) -> int | None:
        if any(load.rid == job.rid for load in self._loads.values()):
            return None
        if not self._load(job):
            return KVScheduler._start(self, job, left)
        load = next(load for load in self._loads.values() if load.rid == job.rid)
        published = dict(self._kv._cached)
        self._kv._cached.update(zip(load.keys, load.blocks, strict=True))
        cached = KVScheduler._start(self, job, left)
        for key in load.keys:
            block = published.get(key)
            if block is not None and self._kv._key_of.get(block) == key:
                self._kv._cached[key] = block
            else:
                self._kv._cached.pop(key, None)
        return cached

    def _end_load(self, load: Load, ok: bool) -> None:
        super()._end_load(load, ok)
        if not ok:
            self._rewind(load)

    def _rewind(self, load: Load) -> None:
        """A request that runs on what could not be loaded goes back in front of it."""
        kv = self._kv
        for job in self._running:
            if job.rid == load.rid:
                request, kept = kv._live[job.rid], len(load.hit)
                for block in reversed(request.table[kept:]):
                    kv._drop(block)
                request.table = request.table[:kept]
                job.computed = request.computed = kept * self.block_size
                self._launched = [item for item in self._launched if item.rid != job.rid]


class CountsWrittenBlocks(TieredScheduler):
    """Of a load that failed it keeps the blocks that were written."""

    partial_loads = True

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._written: dict[Hashable, int] = {}

    def complete(self, id: Hashable, ok: bool, written: int = 0) -> None:
        super().complete(id, ok)
        self._written[id] = written

    def poll(self) -> None:
        for id, ok in self._completed:
            if id in self._loads and not ok:
                self._publish(self._loads[id], self._written[id])
        super().poll()

    def _publish(self, load: Load, written: int) -> None:
        for key, block in list(zip(load.keys, load.blocks, strict=True))[:written]:
            if key not in self._kv._cached:
                self._kv._cached[key] = block
                self._kv._key_of[block] = key


class EndsOnFailure(TieredScheduler):
    """Ends a request whose load has failed."""

    failed_loads = "end"

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._failed: list[str] = []

    def poll(self) -> Collection[str]:  # type: ignore[override]
        super().poll()
        failed, self._failed = self._failed, []
        for rid in failed:
            self.abort(rid)
        return failed

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Sequence[str]:
        failed = self.poll()
        return [*super().update(sampled, accepted), *failed]

    def _end_load(self, load: Load, ok: bool) -> None:
        super()._end_load(load, ok)
        if not ok and any(job.rid == load.rid for job in self._waiting):
            self._failed.append(load.rid)
