"""kv_schedulers with a tier that start others while a request waits for its load."""

from __future__ import annotations

from kvlockstep.reference.kv_scheduler.scheduler import Job
from kvlockstep.reference.kv_scheduler.tiered import Load, TieredScheduler


class LetsOvertake(TieredScheduler):
    """Starts whoever is next while a request waits for its load; each keeps its place in the queue."""

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        planned: list[tuple[Job, int]] = []
        aside: list[Job] = []
        while True:
            more = super()._admit(left - sum(n for _, n in planned))
            planned += more
            if not self._waiting or not self._waits(self._waiting[0]):
                break
            aside.append(self._waiting.pop(0))
        self._waiting = aside + self._waiting
        return planned

    def _waits(self, job: Job) -> bool:
        return any(load.rid == job.rid for load in self._loads.values())


class HoldsLoaded(LetsOvertake):
    """A request keeps what was loaded for it until it starts, and starts before all that hold nothing.

    If nobody else can start, what is held is given up.
    """

    loaded_first = True

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._held: dict[str, list[int]] = {}

    def slots(self, rid: str) -> list[int]:
        size = self.block_size
        return super().slots(rid) or [block * size + i for block in self._held.get(rid, []) for i in range(size)]

    def abort(self, rid: str) -> None:
        self._give_up(rid)
        super().abort(rid)

    def reset(self) -> None:
        self._held.clear()
        super().reset()

    def limbo(self) -> int:
        held = {block for request in self._kv._live.values() for block in request.table}
        return len(self._pinned() - held.union(*self._held.values())) * self.block_size

    def _end_load(self, load: Load, ok: bool) -> None:
        if ok and any(job.rid == load.rid for job in self._waiting):
            self._held[load.rid] = [*load.hit, *load.blocks]
            for block in self._held[load.rid]:
                self._kv._hold(block)
        super()._end_load(load, ok)

    def _load(self, job: Job) -> bool:
        return job.rid not in self._held and super()._load(job)

    def _start(self, job: Job, left: int) -> int | None:
        cached = super()._start(job, left)
        if cached is not None:
            self._give_up(job.rid)
        return cached

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        planned = self._admit_holders_first(left)
        if not planned and not self._running and not self._loads:
            for rid in list(self._held):
                self._give_up(rid)
            planned = self._admit_holders_first(left)
        return planned

    def _admit_holders_first(self, left: int) -> list[tuple[Job, int]]:
        queue = self._waiting
        self._waiting = sorted(queue, key=self._comes_later)
        planned = super()._admit(left)
        self._waiting = [job for job in queue if job in self._waiting]
        return planned

    def _comes_later(self, job: Job) -> bool:
        return job.rid not in self._held

    def _give_up(self, rid: str) -> None:
        for block in reversed(self._held.pop(rid, [])):
            self._kv._drop(block)
