"""kv_scheduler with two tiers: what is in the host tier is copied to a disk behind it, and fetched from there.

A unit of the host tier that a store has filled is moved to the disk as well, and stays in the host tier until it is
evicted. A request whose prefix is on the disk only waits in the queue until it is in the host tier again. It holds
nothing meanwhile, and whoever stands behind it starts. It is fetched for once; then it goes on with what is there.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import NamedTuple

from kvlockstep.reference.kv.transfers import TierUnits, Transfer
from kvlockstep.reference.kv_manager.tier import HOST, Key, Store, Tier
from kvlockstep.reference.kv_scheduler.scheduler import Job
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler

DISK = "disk"


class Move(NamedTuple):
    """A move in flight: the blocks, the units that it reads, and whom it is for, nobody if it goes to the disk."""

    keys: list[Key]
    units: list[int]
    rid: str | None


class FetchingScheduler(TieredScheduler):
    """Meets kv_scheduler.contract.KVSchedulerTarget with moves. The host tier is as large as the pool."""

    moves = True
    loses: bool | tuple[str, ...] = (DISK,)

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self.tiers = {HOST: self._tier_size(blocks), DISK: 2 * blocks}
        self._disk = self.disk_type(self.tiers[DISK])
        self._moves: dict[Hashable, Move] = {}
        self._fetched: set[str] = set()

    disk_type = Tier

    def _tier_size(self, blocks: int) -> int:
        return blocks

    def reset(self) -> None:
        super().reset()
        self._disk = self.disk_type(self.tiers[DISK])
        self._fetched.clear()

    def poll(self) -> None:
        for id, ok in self._completed:
            if id in self._moves:
                self._end_move(self._moves.pop(id), ok)
        self._completed = [(id, ok) for id, ok in self._completed if id in self._stores or id in self._loads]
        super().poll()

    def tier(self, name: str) -> TierUnits:
        return self._disk.units() if name == DISK else super().tier(name)

    def abort(self, rid: str) -> None:
        super().abort(rid)
        self._fetched.discard(rid)

    def _end_store(self, store: Store, ok: bool) -> None:
        super()._end_store(store, ok)
        if ok:
            self._back_up(store.key)

    def _back_up(self, key: Key) -> None:
        """Submits a move of a unit to the disk; drops it if the disk has the block, or no room."""
        unit = self._tier.find(key)
        target = None if unit is None or self._disk.knows(key) else self._disk.begin_store(key)
        if unit is not None and target is not None:
            self._tier.begin_load(key)
            self._move(HOST, DISK, [(unit, target)], Move([key], [unit], None))

    def _fetch(self, job: Job) -> bool:
        """Submits a move of what the disk has behind the cached and the stored prefix; False if that is nothing."""
        kv, size = self._kv, self.block_size
        cached = len(kv._lookup(job.tokens, job.extra_key))
        keys = [kv._key(job.extra_key, job.tokens[:end]) for end in range((cached + 1) * size, len(job.tokens), size)]
        wanted = itertools.dropwhile(lambda key: self._tier.find(key) is not None, keys)
        found = list(itertools.takewhile(self._on_disk_only, wanted))
        pairs: list[tuple[int, int]] = []
        for key in found:
            unit, target = self._disk.find(key), self._tier.begin_store(key)
            if unit is None or target is None:
                break
            self._disk.begin_load(key)
            pairs.append((unit, target))
        if not pairs:
            return False
        self._fetched.add(job.rid)
        self._move(DISK, HOST, pairs, Move(found[: len(pairs)], [unit for unit, _ in pairs], job.rid))
        return True

    def _on_disk_only(self, key: Key) -> bool:
        return not self._tier.knows(key) and self._disk.find(key) is not None

    def _move(self, source: str, target: str, pairs: list[tuple[int, int]], move: Move) -> None:
        id = next(self._ids)
        rids = () if move.rid is None else (move.rid,)
        self._submitted.append(Transfer(id, "move", target, pairs, rids, source=source))
        self._moves[id] = move

    def _end_move(self, move: Move, ok: bool) -> None:
        """What has come can be found. What could not be fetched is forgotten, so that it is not fetched again."""
        source, target = (self._tier, self._disk) if move.rid is None else (self._disk, self._tier)
        for key, unit in zip(move.keys, move.units, strict=True):
            source.end_load(key, unit, ok or move.rid is None)
            target.end_store(key, ok)

    def _waits(self, job: Job) -> bool:
        return any(move.rid == job.rid for move in self._moves.values())

    def _start(self, job: Job, left: int) -> int | None:
        if self._waits(job) or (job.rid not in self._fetched and self._fetch(job)):
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
