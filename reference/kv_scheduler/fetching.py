"""kv_scheduler with two tiers: what is in the host tier is copied to a disk behind it, and fetched from there.

A request whose prefix is on the disk only waits in the queue until it is in the host tier again. It holds nothing
meanwhile, and whoever stands behind it starts. It is fetched for once; then it goes on with what is there.
"""

from __future__ import annotations

from kvlockstep.reference.kv_manager.moving import DISK, Moving
from kvlockstep.reference.kv_scheduler.scheduler import Job
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


class FetchingScheduler(Moving, TieredScheduler):
    """Meets kv_scheduler.contract.KVSchedulerTarget with moves. The host tier is half as large as the pool."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self.tiers[DISK] = 2 * blocks
        self._moves = {}
        self._forget_disk()

    def reset(self) -> None:
        super().reset()
        self._forget_disk()

    def abort(self, rid: str) -> None:
        super().abort(rid)
        self._fetched.discard(rid)

    def _forget_disk(self) -> None:
        self._disk = self.disk_type(self.tiers[DISK])
        self._fetched = set()

    def _fetch_for(self, job: Job) -> bool:
        """Fetches for a request what is behind its cached prefix; False if the disk has nothing."""
        kv, size = self._kv, self.block_size
        cached = len(kv._lookup(job.tokens, job.extra_key))
        ends = range((cached + 1) * size, len(job.tokens), size)
        return self._fetch(job.rid, [kv._key(job.extra_key, job.tokens[:end]) for end in ends])

    def _waits(self, job: Job) -> bool:
        return self._fetches(job.rid)

    def _start(self, job: Job, left: int) -> int | None:
        if self._waits(job) or (job.rid not in self._fetched and self._fetch_for(job)):
            return None
        return super()._start(job, left)

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        super()._preempt(job, preempted)
        self._fetched.discard(job.rid)

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        """Those that wait for a move stay where they are in the queue; the next ones start."""
        planned: list[tuple[Job, int]] = []
        aside: list[Job] = []
        while True:
            planned += super()._admit(left - sum(n for _, n in planned))
            if not self._waiting or not self._waits(self._waiting[0]):
                break
            aside.append(self._waiting.pop(0))
        self._waiting = aside + self._waiting
        return planned
