"""Faults of kv_scheduler that lie below its batches: the manager that it asks, and what it says of slots."""

from __future__ import annotations

from collections.abc import Iterable

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.impl.faulty.kv_manager import tables as kv_tables
from kvlockstep.impl.faulty.kv_manager.lifecycle import ResetKeepsIdle, ResetMovesOn
from kvlockstep.reference.kv_manager.manager import Key, KVManager
from kvlockstep.reference.kv_scheduler import KVScheduler


class Over(KVScheduler):
    """The scheduler over a spoiled manager."""

    manager = KVManager

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._kv = self.manager(blocks, block_size)


class KeyWithoutParent(Over):
    """A block is published under its own tokens alone."""

    class manager(KVManager):
        def _key(self, extra_key: int | None, tokens: list[int]) -> Key:
            return extra_key, tuple(tokens[-self.block_size :])


class HitStaysEvictable(Over):
    """A block that is hit waits to be evicted again once its step is launched, if not for the request that has it."""

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


class TableSorted(Over):
    """A table that grows is put in the order of the block numbers."""

    class manager(KVManager):
        def reserve(self, rid: str, n: int) -> bool:
            accepted = super().reserve(rid, n)
            self._live[rid].table.sort()
            return accepted


class ResetKeepsCache(Over):
    """A reset, for new weights, say, preempts the running requests and leaves what they published."""

    manager = ResetKeepsIdle


class ResetKeepsPool(Over):
    """A reset makes a second pool behind the first."""

    manager = ResetMovesOn


class TablePadded(KVScheduler):
    """Tables have the width of the longest; the shorter ones are filled up with their last slot."""

    def slots(self, rid: str) -> list[int]:
        own = super().slots(rid)
        widest = max((len(self._kv.slots(job.rid)) for job in self._running), default=0)
        return own + own[-1:] * (widest - len(own))


class ListsEnding(KVScheduler):
    """The slots of a request that will end with the batch in flight are listed as free."""

    def free_slots(self) -> Iterable[int] | None:
        ending = [job.rid for job in self._running if len(job.tokens) + 1 == job.last and self._launched]
        return [*(super().free_slots() or ()), *(slot for rid in ending for slot in self.slots(rid))]


class ListsAbortedTwice(KVScheduler):
    """An abort puts the slots into the list of the free ones, where their release has put them."""

    _aborted: tuple[int, ...] = ()

    def abort(self, rid: str) -> None:
        self._aborted = tuple(self.slots(rid))
        super().abort(rid)

    def free_slots(self) -> Iterable[int] | None:
        free = list(super().free_slots() or ())
        return free + [slot for slot in self._aborted if slot in free]


class CountsShared(KVScheduler):
    """A block with several holders counts as available for all but one of them."""

    def avail(self) -> int:
        return super().avail() + sum(refs > 1 for refs in self._kv._refs) * self.block_size


class TakesAhead(Over):
    """A block more than needed is taken while any is free, also beyond the longest request."""

    manager = kv_tables.TakesAhead
    drafts = 0

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self.max_length = max(block_size, self.total // 2)


FAULTS = faults_of(
    "kv_scheduler",
    ("sched-takes-ahead", TakesAhead, "a table longer than its row", ("shape: lookahead unbounded",), "table_limit"),
    ("sched-no-parent", KeyWithoutParent, "a key without the parent", ("vllm#12603",), "prefix_soundness"),
    ("sched-hit-evictable", HitStaysEvictable, "a hit stays evictable", ("vllm#10507",), "write_isolation"),
    ("sched-table-sorted", TableSorted, "a table in another order", ("mutant",), "content_equality"),
    ("sched-reset-keeps", ResetKeepsCache, "a reset forgets nothing", ("vllm#57727",), "reset_complete"),
    ("sched-reset-moves-on", ResetKeepsPool, "the pool grows with each reset", ("mutant",), "conservation"),
    ("sched-table-padded", TablePadded, "one slot for many positions", ("mutant",), "no_aliasing"),
    ("sched-frees-in-flight", ListsEnding, "free before its batch is done", ("mini-sglang#52",), "eviction_safety"),
    ("sched-abort-lists-twice", ListsAbortedTwice, "freed by two hands", ("sglang#13501",), "no_double_free"),
    ("sched-counts-shared", CountsShared, "shared counts as available", ("mutant",), "accounting"),
)
