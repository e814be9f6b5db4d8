"""kv_schedulers that release slots late and have no tier: what has ended is still being copied somewhere."""

from __future__ import annotations

from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.scheduler import KVScheduler


class ReleasesLate(KVScheduler):
    """The blocks of a request that has ended are copied out first, which takes two batches."""

    can_reset = False
    late_release = True
    takes = 2

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        # For each copy the number of the batch that releases its blocks, and these.
        self._copies: list[tuple[int, list[int]]] = []
        self._batches = 0

    def schedule(self) -> Batch:
        self._batches += 1
        self._release()
        return super().schedule()

    def abort(self, rid: str) -> None:
        if any(job.rid == rid for job in self._running):
            blocks = self._kv._live[rid].table
            for block in blocks:
                self._kv._hold(block)
            self._copies.append((self._batches + self.takes, list(blocks)))
        super().abort(rid)

    def limbo(self) -> int:
        held = {block for request in self._kv._live.values() for block in request.table}
        return len({block for _, blocks in self._copies for block in blocks} - held) * self.block_size

    def _release(self) -> None:
        for release, blocks in self._copies:
            for block in reversed(blocks) if release <= self._batches else ():
                self._kv._drop(block)
        self._copies = [copy for copy in self._copies if copy[0] > self._batches]


class ReleasesBehindBatch(ReleasesLate):
    """It looks for copies that have ended behind the batch, and `avail` counts what is still being copied."""

    def schedule(self) -> Batch:
        batch = KVScheduler.schedule(self)
        self._batches += 1
        self._release()
        return batch

    def avail(self) -> int:
        return super().avail() + self.limbo()


LATE_VARIANTS = {
    "releases-late": ReleasesLate,
    "releases-behind-batch": ReleasesBehindBatch,
}
