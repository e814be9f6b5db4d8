"""Faults of kv_scheduler with groups: windows under batches in flight, tables and states of the worker, preemption."""

from __future__ import annotations

from collections.abc import Iterable

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.kv_scheduler.flying_states import FlyingStates, OverlapStates
from kvlockstep.impl.kv_scheduler.grouped import OverlapWindow
from kvlockstep.reference.kv_manager.groups.contract import Step, needed
from kvlockstep.reference.kv_manager.groups.manager import GroupedManager
from kvlockstep.reference.kv_manager.groups.request import Request
from kvlockstep.reference.kv_scheduler.grouped import FullAndWindow, StatePool, TwoPools, TwoWindows
from kvlockstep.reference.kv_scheduler.scheduler import Job


class ReferenceOverlap(OverlapWindow):
    """The scheduler with a batch in flight over the reference manager, which sends no events."""

    event_listener = None
    manager = GroupedManager


def slid_to(kv: GroupedManager, request: Request, computed: int) -> None:
    """Lets every window slide as if so many tokens were computed."""
    before, request.computed = request.computed, computed
    for g in range(len(kv.groups)):
        kv._slide(g, request)
    request.computed = before


@fault("sched-window-slides-by-plan", law="coverage", seen=("vllm#47728", "vllm-ascend#13501"))
class SlidesByPlan(ReferenceOverlap):
    """A window slides when a batch is planned, as if every draft in flight were right."""

    def _reserve(self, job: Job, n: int) -> bool:
        slid_to(self._kv, self._kv._live[job.rid], job.computed + self._ahead(job)[0])
        return super()._reserve(job, n)


@fault("sched-window-slides-for-batch", law="coverage", seen=("mutant",))
class SlidesForBatch(FullAndWindow):
    """A window slides to where the batch will end before the worker is told its table."""

    def _table(self, job: Job, g: int, stop: int) -> list[int | None]:
        slid_to(self._kv, self._kv._live[job.rid], stop)
        return super()._table(job, g, stop)


@fault("sched-window-never-slides", law="window_freed", seen=("mutant",))
class NeverSlides(FullAndWindow):
    """A window keeps every block until its request ends."""

    class manager(GroupedManager):
        def _slide(self, g: int, request: Request) -> None:
            pass


@fault("sched-group-block-for-two", law="one_group", seen=("mutant",))
class BlockForTwo(FullAndWindow):
    """A block that is taken ahead is given to two groups."""

    class manager(GroupedManager):
        def _grow(self, request: Request, n: int) -> None:
            super()._grow(request, n)
            full, window = request.tables
            pool = self._pool(0)
            most = len(request.tokens) // self.block_size
            if len(full) == len(window) < most and pool.room():
                ahead = pool.take()
                pool.hold(ahead)
                full.append(ahead)
                window.append(ahead)


@fault("sched-group-kept-on-preempt", law="preemption_frees", seen=("mutant",))
class KeptOnPreempt(FullAndWindow):
    """A preemption gives back the blocks of the first group; the request keeps those of the others."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._kept: dict[str, list[int]] = {}

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        kept = self._kv.held(job.rid, 1)
        for block in kept:
            self._kv._pool(1).hold(block)
        super()._preempt(job, preempted)
        self._kept[job.rid] = kept

    def held(self, rid: str, group: int) -> Iterable[int]:
        return super().held(rid, group) if self._runs(rid) else self._kept.get(rid, []) if group else []

    def slots(self, rid: str, group: int = 0) -> list[int | None]:  # type: ignore[override]
        if self._runs(rid) or not group:
            return super().slots(rid, group)
        return [block * self.block_size + i for block in self._kept.get(rid, ()) for i in range(self.block_size)]


@fault("sched-group-lost-on-preempt", law="accounting", seen=("mutant",))
class LostOnPreempt(FullAndWindow):
    """A preemption forgets the blocks of all groups but the first without freeing them."""

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        self._kv._live[job.rid].tables[1] = []
        super()._preempt(job, preempted)


@fault("sched-group-stale-table", law="held_tables", seen=("mutant",))
class StaleTable(FullAndWindow):
    """The worker appends to the old tables of a resumed request, but for that of the first group."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._told: dict[str, list[int | None]] = {}

    def _table(self, job: Job, g: int, stop: int) -> list[int | None]:
        table = super()._table(job, g, stop)
        if not g:
            return table
        told = self._told.get(job.rid, [])[: len(table)]
        self._told[job.rid] = [*told, *table[len(told) :]]
        return self._told[job.rid]


@fault("sched-group-late-table", law="coverage", seen=("mutant",))
class LateTable(TwoWindows):
    """The worker hears of new blocks only when the first group has one; another has smaller blocks."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._told: dict[tuple[str, int], list[int | None]] = {}

    def _table(self, job: Job, g: int, stop: int) -> list[int | None]:
        if job.computed % self.block_size == 0 or stop - job.computed > 1 or (job.rid, g) not in self._told:
            self._told[job.rid, g] = self._kv.slots(job.rid, g)
        return self._told[job.rid, g][:stop]


@fault("sched-window-resumes-slid", law="coverage", seen=("mutant",))
class ResumesSlid(FullAndWindow):
    """A resumed request gets no blocks for what its window had left before the preemption."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._left: dict[str, int] = {}

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        self._left[job.rid] = needed(self.groups[1], job.computed, job.computed).start
        super()._preempt(job, preempted)

    def _table(self, job: Job, g: int, stop: int) -> list[int | None]:
        table, left = super()._table(job, g, stop), self._left.get(job.rid, 0)
        gone: list[int | None] = [None] * min(left, stop)
        return gone + table[left:] if g else table


@fault("sched-pool-unasked", law="error_contract", seen=("mutant",))
class PoolUnasked(TwoPools):
    """A reservation asks the first pool for room, and takes from the others without asking."""

    class manager(GroupedManager):
        def reserve(self, rid: str, n: int) -> bool:
            request = self._live[rid]
            if self._need(request, n)["kv"] > self._pools["kv"].room():
                return False
            self._grow(request, n)
            return True


@fault("sched-state-row-kept", law="state_soundness", seen=("mutant",))
class StateRowKept(StatePool):
    """The worker goes on with a resumed request from the state block that its old row still names."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._rows: dict[str, int | None] = {}

    def _preempt(self, job: Job, preempted: list[str]) -> None:
        self._rows[job.rid] = self._kv._live[job.rid].states[2]
        super()._preempt(job, preempted)

    def _state(self, job: Job, g: int) -> Step:
        step = super()._state(job, g)
        return step._replace(source=self._rows.pop(job.rid)) if job.computed and job.rid in self._rows else step


@fault("sched-state-of-cut-chunk", law="state_soundness", seen=("vllm#43559",))
class StateOfCutChunk(StatePool):
    """A chunk that the budget ends within a block publishes its state for the whole block."""

    class manager(GroupedManager):
        def _keep_state(self, g: int, request: Request) -> None:
            super()._keep_state(g, request)
            place, state = request.computed // self.groups[g].block_size, request.states[g]
            cut = len(request.tokens) > request.computed + 1
            if cut and request.computed % self.groups[g].block_size and state is not None:
                self._publish(g, request, place, state)


@fault("sched-state-last-draft-only", law="coverage", seen=("mutant",))
class LastDraftOnly(StatePool):
    """The worker saves the state behind the last draft of a batch, and none behind those before it."""

    def _state(self, job: Job, g: int) -> Step:
        step = super()._state(job, g)
        return step._replace(saves=list(step.saves)[-1:])


@fault("sched-reset-one-pool", law="reset_complete", seen=("transformers#31917",))
class ResetOnePool(TwoPools):
    """A reset preempts the running requests and forgets what is cached in the first pool only."""

    class manager(GroupedManager):
        def reset(self) -> None:
            kept = getattr(self, "_pools", None)
            super().reset()
            if kept is not None:
                self._pools["window"] = kept["window"]


@fault("sched-state-by-plan", law="state_soundness", seen=("mutant",))
class StateByPlan(OverlapStates):
    """A batch goes on from the state behind the last draft in flight, whatever the device accepts."""

    def _reached(self, job: Job, blocks: list[int]) -> int:
        return blocks[-1]


@fault("sched-state-rejected-kept", law="accounting", seen=("mutant",))
class RejectedKept(OverlapStates):
    """The states behind rejected drafts are forgotten when their batch is back, and never freed."""

    class manager(FlyingStates):
        def _keep_state(self, g: int, request: Request) -> None:
            blocks = self.flying[id(request), g][0]
            lost = [block for i, block in enumerate(blocks) if i > self.right]
            super()._keep_state(g, request)
            for block in lost:
                self._pool(g).free.remove(block)
