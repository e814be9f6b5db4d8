"""Faults of kv_scheduler: block tables and free blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_manager import tables as kv_tables
from kvlockstep.impl.faulty.kv_manager.reset import ResetKeepsIdle, ResetMovesOn
from kvlockstep.reference.kv_manager.manager import Key, KVManager
from kvlockstep.reference.kv_scheduler.contract import Item
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler


@fault("sched-stale-table", law="held_tables", seen=("LMCache#1361", "vllm#46595"))
class StaleWorkerTable(KVScheduler):
    """The worker appends a resumed request's blocks to its old table instead of replacing it."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._tables: dict[str, Sequence[int]] = {}

    def _item(self, job: Job, n: int) -> Item:
        item = super()._item(job, n)
        known = self._tables.get(job.rid, ())[: len(item.slots)]
        self._tables[job.rid] = [*known, *item.slots[len(known) :]]
        return item._replace(slots=self._tables[job.rid])


@fault("sched-late-table", law="coverage", seen=("vllm-rbln#676",))
class TableWithoutNewBlock(KVScheduler):
    """The worker gets the new block of a decode one step late."""

    def _item(self, job: Job, n: int) -> Item:
        item = super()._item(job, n)
        late = n == 1 and item.start and item.start % self.block_size == 0
        return item._replace(slots=item.slots[: item.start]) if late else item


class WithFaultyManager(KVScheduler):
    """The scheduler with a faulty manager."""

    manager = KVManager

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._kv = self.manager(blocks, block_size)


@fault("sched-no-parent", law="prefix_soundness", seen=("vllm#12603",))
class KeyWithoutParent(WithFaultyManager):
    """A block's key is its own tokens, without its parent."""

    class manager(KVManager):
        def _key(self, extra_key: int | None, tokens: list[int]) -> Key:
            return extra_key, tuple(tokens[-self.block_size :])


@fault("sched-hit-evictable", law="write_isolation", seen=("vllm#10507",))
class HitStaysEvictable(WithFaultyManager):
    """A block that is hit can be evicted again once its step is launched."""

    class manager(KVManager):
        def avail(self) -> int:
            return (len(self._free) + sum(not self._refs[block] for block in self._idle)) * self.block_size

        def reserve(self, rid: str, n: int) -> bool:
            own = [block for block in self._live[rid].table if self._idle.pop(block, self) is None]
            accepted = super().reserve(rid, n)
            self._idle = {**dict.fromkeys(own), **self._idle}
            return accepted

        def launch(self) -> None:
            super().launch()
            hits = [block for request in self._live.values() for block in request.table if block in self._key_of]
            self._idle.update(dict.fromkeys(hits))


@fault("sched-table-sorted", law="content_equality", seen=("mutant",))
class TableSorted(WithFaultyManager):
    """A table that grows is sorted by block number."""

    class manager(KVManager):
        def reserve(self, rid: str, n: int) -> bool:
            accepted = super().reserve(rid, n)
            self._live[rid].table.sort()
            return accepted


@fault("sched-reset-keeps", law="reset_complete", seen=("vllm#57727",))
class ResetKeepsCache(WithFaultyManager):
    """A reset preempts the running requests but keeps the published blocks."""

    manager = ResetKeepsIdle


@fault("sched-reset-moves-on", law="conservation", seen=("mutant",))
class ResetKeepsPool(WithFaultyManager):
    """Each reset creates a second pool behind the first and never frees the first."""

    manager = ResetMovesOn


@fault("sched-table-padded", law="no_aliasing", seen=("mutant",))
class TablePadded(KVScheduler):
    """Short tables are padded to the width of the longest by repeating their last slot."""

    def slots(self, rid: str) -> list[int]:
        own = super().slots(rid)
        widest = max((len(self._kv.slots(job.rid)) for job in self._running), default=0)
        return own + own[-1:] * (widest - len(own))


@fault("sched-frees-in-flight", law="eviction_safety", seen=("mini-sglang#52",))
class ListsEnding(KVScheduler):
    """The slots of a request that ends with the batch in flight are listed as free too early."""

    def free_slots(self) -> Iterable[int] | None:
        ending = [job.rid for job in self._running if len(job.tokens) + 1 == job.last and self._launched]
        return [*(super().free_slots() or ()), *(slot for rid in ending for slot in self.slots(rid))]


@fault("sched-abort-lists-twice", law="no_double_free", seen=("sglang#13501",))
class ListsAbortedTwice(KVScheduler):
    """An abort lists the request's slots as free a second time."""

    _aborted: tuple[int, ...] = ()

    def abort(self, rid: str) -> None:
        self._aborted = tuple(self.slots(rid))
        super().abort(rid)

    def free_slots(self) -> Iterable[int] | None:
        free = list(super().free_slots() or ())
        return free + [slot for slot in self._aborted if slot in free]


@fault("sched-counts-shared", law="accounting", seen=("mutant",))
class CountsShared(KVScheduler):
    """avail also counts the blocks that several requests share."""

    def avail(self) -> int:
        return super().avail() + sum(refs > 1 for refs in self._kv._refs) * self.block_size


@fault("sched-takes-ahead", law="table_limit", seen=("shape: lookahead unbounded",))
class TakesAhead(WithFaultyManager):
    """A request takes one block ahead of its need, even past the longest table allowed."""

    manager = kv_tables.TakesAhead
    drafts = 0

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self.max_length = max(block_size, self.total // 2)
