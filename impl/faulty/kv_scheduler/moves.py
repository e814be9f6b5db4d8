"""Faults of kv_scheduler: moves between two tiers, and requests that wait for one in the queue."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.variants.moves import KeepsFetched, NeverWaits
from kvlockstep.impl.variants.tiers import HearsAtOnce
from kvlockstep.reference.kv_manager.moving import DISK, Move
from kvlockstep.reference.kv_manager.tier import HOST, Key, Tier
from kvlockstep.reference.kv_scheduler.fetching import FetchingScheduler
from kvlockstep.reference.kv_scheduler.scheduler import Job
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


class CachesOnDisk(FetchingScheduler):
    """Neither the pool nor the host tier keeps what nobody uses, so that what is hit comes from the disk."""

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        self._drop_caches()
        super().add(rid, tokens, extra_key, max_tokens, priority)

    def poll(self) -> None:
        self._drop_caches()
        super().poll()

    def _drop_caches(self) -> None:
        self._kv.evict_all()
        tier = self._tier
        for key, unit in list(tier._cached.items()):
            if not tier._readers[unit]:
                tier._free.append(tier._cached.pop(key))


class OneHostUnit(FetchingScheduler):
    """A host tier of one unit, for which stores and moves compete."""

    def _tier_size(self, blocks: int) -> int:
        return 1


@fault("sched-backup-unpinned", law="source_stable", seen=("sglang#28468",))
class BackupUnpinned(OneHostUnit):
    """A unit of the host tier is evicted and stored to while it is still copied to the disk."""

    def _back_up(self, key: Key) -> None:
        before = len(self._moves)
        super()._back_up(key)
        if len(self._moves) > before:
            self._tier._readers[self._tier._cached[key]] -= 1

    def _end_move(self, move: Move, ok: bool) -> None:
        self._tier._readers.update(move.units if move.rid is None else ())
        super()._end_move(move, ok)


@fault("sched-backup-at-store", law="load_before_read", seen=("mutant",))
class BackupAtStore(FetchingScheduler):
    """A unit of the host tier is copied to the disk while its own store still writes it."""

    def _store(self, key: Key, block: int) -> None:
        super()._store(key, block)
        unit = self._tier._storing.get(key)
        target = None if unit is None or self._disk.knows(key) else self._disk.begin_store(key)
        if unit is not None and target is not None:
            self._move(HOST, DISK, [(unit, target)], Move([key], [unit], None))

    def _back_up(self, key: Key) -> None:
        pass

    def _end_move(self, move: Move, ok: bool) -> None:
        self._tier._readers.update(move.units if move.rid is None else ())
        super()._end_move(move, ok)


@fault("sched-fetched-early", law="target_owned", seen=("mutant",))
class FetchedEarly(CachesOnDisk):
    """A fetched unit can be found in the host tier as soon as its move is submitted."""

    def _move(self, source: str, target: str, pairs: list[tuple[int, int]], move: Move) -> None:
        super()._move(source, target, pairs, move)
        for key in move.keys if target == HOST else ():
            self._tier.end_store(key, True)

    def _end_move(self, move: Move, ok: bool) -> None:
        for key in move.keys if move.rid is not None else ():
            self._tier._cached.pop(key, None)
        super()._end_move(move, ok)


@fault("sched-failed-fetch-kept", law="failure_visible", seen=("LMCache#5151",))
class FailedFetchKept(CachesOnDisk):
    """A fetch that failed counts as done, and its request loads what is not there."""

    def _end_move(self, move: Move, ok: bool) -> None:
        super()._end_move(move, ok or move.rid is not None)


@fault("sched-failed-backup-kept", law="failure_visible", seen=("sglang#27108",))
class FailedBackupKept(HearsAtOnce, CachesOnDisk):
    """A copy to the disk that failed counts as done, and is fetched from there later."""

    def _end_move(self, move: Move, ok: bool) -> None:
        super()._end_move(move, ok or move.rid is None)


@fault("sched-torn-fetch-long", law="failure_visible", seen=("vllm#7577",))
class TornFetchLong(CachesOnDisk, KeepsFetched, NeverWaits):
    """Of a fetch that ended early one block more is kept than has come."""

    def _come(self, move: Move, written: int) -> Move:
        return super()._come(move, written + (written < len(move.keys) and move.rid is not None))


@fault("sched-fetch-shifted", law="prefix_soundness", seen=("mutant",))
class FetchShifted(CachesOnDisk):
    """The blocks of a fetch come in the reverse order into the units that wait for them."""

    def _move(self, source: str, target: str, pairs: list[tuple[int, int]], move: Move) -> None:
        targets = [unit for _, unit in pairs]
        super()._move(source, target, list(zip(move.units, reversed(targets), strict=True)), move)


@fault("sched-abort-frees-fetch", law="target_owned", seen=("vllm#32255",))
class AbortFreesFetch(CachesOnDisk):
    """An abort frees the units of the host tier that a fetch for the request still writes."""

    def abort(self, rid: str) -> None:
        for id, move in list(self._moves.items()):
            if move.rid == rid:
                self._end_move(self._moves.pop(id), False)
        super().abort(rid)


@fault("sched-failed-fetch-pins", law="quiescence", seen=("LMCache#2785",))
class FailedFetchPins(CachesOnDisk):
    """A fetch that failed keeps its pin on what it has read."""

    def _end_move(self, move: Move, ok: bool) -> None:
        self._disk._readers.update(move.units if move.rid is not None and not ok else ())
        super()._end_move(move, ok)


@fault("sched-failed-fetch-leaks", law="tier_accounting", seen=("LMCache#2559",))
class FailedFetchLeaks(CachesOnDisk):
    """The units of the host tier that a failed fetch should have filled are never given back."""

    class tier_type(Tier):
        def end_store(self, key: Key, ok: bool) -> None:
            super().end_store(key, ok)
            if not ok:
                self._free.pop()


@fault("sched-fetch-blocks-queue", law="starvation", seen=("shape: head of line",))
class FetchBlocksQueue(CachesOnDisk):
    """Nobody starts as long as the head of the queue waits for its fetch."""

    def _admit(self, left: int) -> list[tuple[Job, int]]:
        return TieredScheduler._admit(self, left)


@fault("sched-fetch-without-end", law="starvation", seen=("shape: a time limit that nobody looks at",))
class FetchWithoutEnd(CachesOnDisk):
    """A request waits for its fetch to its end, though it should start without after one batch."""

    patience = 1


@fault("sched-fetched-again", law="transfer_progress", seen=("vllm#49902",))
class FetchedAgain(CachesOnDisk):
    """A fetched unit is dropped before its request is looked at, which then fetches it again."""

    def _end_move(self, move: Move, ok: bool) -> None:
        super()._end_move(move, ok)
        self._drop_caches()
        self._fetched.clear()


@fault("sched-reset-keeps-disk", law="backed", seen=("vllm#57727", "sglang#26792"))
class ResetKeepsDisk(FetchingScheduler):
    """A reset empties the pool and the host tier, and leaves the index of the disk."""

    def reset(self) -> None:
        disk = self._disk
        super().reset()
        self._disk = disk


@fault("sched-fetch-source-unpinned", law="source_stable", seen=("mutant",))
class FetchSourceUnpinned(CachesOnDisk):
    """A unit of the disk is evicted and written again while a fetch reads it."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self.tiers[DISK] = 1
        self._disk = self.disk_type(1)

    def _tier_size(self, blocks: int) -> int:
        return blocks

    class disk_type(Tier):
        def begin_load(self, key: Key) -> None:
            pass

        def end_load(self, key: Key, unit: int, ok: bool) -> None:
            if not ok and self._cached.get(key) == unit:
                self._free.append(self._cached.pop(key))
