"""kv_schedulers with moves between tiers that are right in another way than the reference."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from kvlockstep.reference.kv.transfers import Transfer
from kvlockstep.reference.kv_manager.moving import DISK, Move
from kvlockstep.reference.kv_manager.tier import HOST, Key, Tier
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.fetching import FetchingScheduler
from kvlockstep.reference.kv_scheduler.scheduler import Job
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


class KeepsFetched(FetchingScheduler):
    """Of a fetch that failed it keeps the blocks that have come."""

    partial_loads = True

    def complete(self, id: Hashable, ok: bool, written: int = 0) -> None:
        super().complete(id, ok)
        if id in self._moves:
            self._moves[id] = self._come(self._moves[id], written)

    def _come(self, move: Move, written: int) -> Move:
        """What becomes of a move of which so many blocks have come: those are a move of their own that is well."""
        whole = Move(move.keys[:written], move.units[:written], move.rid)
        self._end_move(whole, True)
        return Move(move.keys[written:], move.units[written:], move.rid)


class GivesUp(FetchingScheduler):
    """Lets a request wait for its fetch in one batch only, and then start without; what is fetched comes later."""

    patience = 1

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._asked: set[str] = set()

    def schedule(self) -> Batch:
        batch = super().schedule()
        self._asked.update(job.rid for job in self._waiting if not batch.items and self._waits(job))
        return batch

    def _waits(self, job: Job) -> bool:
        return job.rid not in self._asked and super()._waits(job)


class NeverWaits(FetchingScheduler):
    """Fetches what is on the disk when a request arrives, and starts it with what has come by then."""

    patience = 0

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        super().add(rid, tokens, extra_key, max_tokens, priority)
        self._fetch_for(self._waiting[-1])

    def _start(self, job: Job, left: int) -> int | None:
        return TieredScheduler._start(self, job, left)

    def _waits(self, job: Job) -> bool:
        return False


class OnlyDiskFails(FetchingScheduler):
    """Its host tier never fails, and loses nothing."""

    fails = {DISK: "any"}


class EvictsToDisk(FetchingScheduler):
    """Moves a unit to the disk when the host tier evicts it, and waits for that; nothing is copied before."""

    loses = False
    fails = {HOST: "any"}

    class tier_type(Tier):
        def begin_store(self, key: Key) -> int | None:
            before = dict(self._cached)
            unit = super().begin_store(key)
            self.evicted = [(key, old) for key, old in before.items() if key not in self._cached]
            return unit

    _tier: tier_type

    def _back_up(self, key: Key) -> None:
        pass

    def _store(self, key: Key, block: int) -> None:
        self._tier.evicted = []
        first = len(self._submitted)
        super()._store(key, block)
        self._send_evicted(first)

    def _fetch(self, rid: str, keys: Sequence[Key]) -> bool:
        self._tier.evicted = []
        first = len(self._submitted)
        fetched = super()._fetch(rid, keys)
        self._send_evicted(first)
        return fetched

    def _send_evicted(self, first: int) -> None:
        """In front of what takes their units, which has been submitted since the `first` of all."""
        for key, unit in self._tier.evicted:
            target = None if self._disk.knows(key) else self._disk.begin_store(key)
            if target is not None:
                id = next(self._ids)
                move = Transfer(id, "move", DISK, [(unit, target)], source=HOST, waited=True)
                self._submitted.insert(first, move)
                self._disk.end_store(key, True)


class FetchesOneByOne(FetchingScheduler):
    """Fetches for one request at a time. Who comes next waits, as if what is fetched had the only buffer."""

    looks_up = buffered = True

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._parked: set[str] = set()

    def looking_up(self) -> Collection[str]:
        return [job.rid for job in self._waiting if self._waits(job)]

    def schedule(self) -> Batch:
        self._parked.clear()
        return super().schedule()

    def _fetch_for(self, job: Job) -> bool:
        if all(move.rid is None for move in self._moves.values()):
            return super()._fetch_for(job)
        self._parked.add(job.rid)
        return True

    def _waits(self, job: Job) -> bool:
        return job.rid in self._parked or super()._waits(job)


class WaitsForAnothers(FetchingScheduler):
    """Who begins with a block that is fetched for somebody else waits for that fetch, too."""

    def _waits(self, job: Job) -> bool:
        ends = range(self.block_size, len(job.tokens), self.block_size)
        needed = {self._kv._key(job.extra_key, job.tokens[:end]) for end in ends}
        fetched = (key for move in self._moves.values() if move.rid is not None for key in move.keys)
        return super()._waits(job) or not needed.isdisjoint(fetched)


MOVE_VARIANTS = {
    "keeps-fetched": KeepsFetched,
    "gives-up-fetching": GivesUp,
    "never-waits-for-fetch": NeverWaits,
    "only-disk-fails": OnlyDiskFails,
    "evicts-to-disk": EvictsToDisk,
    "fetches-one-by-one": FetchesOneByOne,
    "waits-for-anothers-fetch": WaitsForAnothers,
}
