"""Blocks that are still being copied when their request has ended: right managers and schedulers are not blamed."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Sequence

import pytest
from driving import walk

from kvlockstep.core.failure_page import failure_page
from kvlockstep.impl.faulty.kv_scheduler.late_release import LimboStays, WaitsForLimbo
from kvlockstep.impl.variants.late_release import ReleasesBehindBatch, ReleasesLate
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_scheduler.judge import SchedulerJudge
from kvlockstep.models.kv_scheduler.late import MOST_EMPTY
from kvlockstep.reference.kv.transfers import TierUnits, Transfer
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.kv_manager.groups.geometries import TwoPools
from kvlockstep.reference.kv_manager.groups.manager import GroupedManager
from kvlockstep.reference.kv_scheduler import KVScheduler
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.grouped import TwoPools as TwoPoolScheduler
from kvlockstep.targets.validation import require_usable


class ReleasesAfterCopy(KVManager):
    """The blocks of a finished request come back when the copy to the host is done: at the second launch after."""

    can_withdraw = False
    late_release = True

    def reset(self) -> None:
        super().reset()
        self._copying: list[tuple[int, list[int]]] = []

    def finish(self, rid: str) -> None:
        self._copying.append((2, self._live.pop(rid).table))

    def launch(self) -> None:
        super().launch()
        for left, table in self._copying:
            for block in reversed(table) if left == 1 else ():
                self._drop(block)
        self._copying = [(left - 1, table) for left, table in self._copying if left > 1]

    def limbo(self) -> int:
        return len(self._waiting()) * self.block_size

    def _waiting(self) -> set[int]:
        copying = {block for _, table in self._copying for block in table}
        return copying - {block for request in self._live.values() for block in request.table}


class CountsThem(ReleasesAfterCopy):
    """`avail` counts what is still being copied."""

    def avail(self) -> int:
        return super().avail() + self.limbo()


@pytest.mark.parametrize("manager", [ReleasesAfterCopy, CountsThem])
def test_a_manager_may_release_late_and_count_it_either_way(manager: type[KVManager]) -> None:
    outcome = walk(KVManagerModel, manager, 6_000, seed=3)
    assert outcome.failure is None, failure_page(outcome.failure)


def test_a_manager_that_releases_late_and_does_not_say_so_is_blamed() -> None:
    silent = type("Silent", (ReleasesAfterCopy,), {"late_release": False})
    assert walk(KVManagerModel, silent, 6_000, seed=3).failure.law in ("accounting", "leak_freedom")


def test_what_waits_is_no_excuse_for_what_is_lost() -> None:
    class Loses(ReleasesAfterCopy):
        """Forgets the last block of each copy."""

        def finish(self, rid: str) -> None:
            super().finish(rid)
            self._copying[-1][1][1:2] = []

    assert walk(KVManagerModel, Loses, 6_000, seed=3).failure.law in ("accounting", "leak_freedom")


class GroupsReleaseAfterCopy(TwoPools):
    """The blocks of a finished request come back to their pools at the second launch after."""

    late_release = True

    def reset(self) -> None:
        super().reset()
        self._copying: list[tuple[int, str, list[int]]] = []

    def finish(self, rid: str) -> None:
        request = self._live.pop(rid)
        self._copying += [(2, group.pool, request.held(g)) for g, group in enumerate(self.groups)]

    def launch(self) -> None:
        super().launch()
        for left, pool, blocks in self._copying:
            for block in reversed(blocks) if left == 1 else ():
                self._pools[pool].drop(block)
        self._copying = [(left - 1, *rest) for left, *rest in self._copying if left > 1]

    def limbo(self, pool: str) -> int:
        of_pool = [g for g, group in enumerate(self.groups) if group.pool == pool]
        held = {block for request in self._live.values() for g in of_pool for block in request.held(g)}
        return len({block for _, name, blocks in self._copying for block in blocks if name == pool} - held)


class GroupsCountThem(GroupsReleaseAfterCopy):
    """`avail` counts what is still being copied."""

    def avail(self, pool: str = "") -> int:
        return super().avail(pool) + self.limbo(pool)


class OneLatePool(GroupsReleaseAfterCopy):
    """Both groups take their blocks from one pool."""

    def __init__(self, blocks: int, block_size: int) -> None:
        groups = Group("full", block_size), Group("window", block_size, reach=5)
        GroupedManager.__init__(self, groups, {"kv": 2 * blocks})

    def limbo(self, pool: str = "kv") -> int:
        return super().limbo(pool)


@pytest.mark.parametrize("manager", [GroupsReleaseAfterCopy, GroupsCountThem, OneLatePool])
def test_each_pool_of_a_manager_with_groups_may_release_late(manager: type[GroupedManager]) -> None:
    require_usable("kv_manager", manager.__name__, manager)
    outcome = walk(KVManagerModel, manager, 6_000, seed=3)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.reach["refused_admission"]


def test_what_waits_in_one_pool_is_no_excuse_for_what_is_lost_in_another() -> None:
    class Loses(GroupsReleaseAfterCopy):
        """The window's pool loses a block of each copy that has several; `limbo` says it of the other pool."""

        def launch(self) -> None:
            self._copying = [
                (left, pool, blocks[1:] if pool == "window" else blocks) for left, pool, blocks in self._copying
            ]
            super().launch()

    assert walk(KVManagerModel, Loses, 6_000, seed=3).failure.law in ("accounting", "leak_freedom")


class StoresWhatWasAborted(KVScheduler):
    """The blocks of an aborted request are written out, and come back when that is done."""

    can_reset = False

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self.tiers = {"disk": 100}
        self._copying: dict[int, list[int]] = {}
        self._units: dict[int, list[int]] = {}
        self._done: list[int] = []
        self._fresh: list[Transfer] = []

    def abort(self, rid: str) -> None:
        table = self._kv._live[rid].table if any(job.rid == rid for job in self._running) else []
        if table:
            id = next(n for n in itertools.count() if n not in self._copying)
            used = {unit for units in self._units.values() for unit in units}
            units = [unit for unit in range(100) if unit not in used][: len(table)]
            self._units[id], self._copying[id] = units, list(table)
            self._fresh.append(Transfer(id, "store", "disk", list(zip(table, units, strict=True))))
            for block in table:
                self._kv._hold(block)
        super().abort(rid)

    def transfers(self) -> Sequence[Transfer]:
        fresh, self._fresh = self._fresh, []
        return fresh

    def waits(self) -> Collection[Hashable]:
        return ()

    def complete(self, id: int, ok: bool) -> None:
        self._done.append(id)

    def poll(self) -> None:
        for id in self._done:
            del self._units[id]
            for block in reversed(self._copying.pop(id)):
                self._kv._drop(block)
        self._done = []

    def tier(self, name: str) -> TierUnits:
        storing = [unit for units in self._units.values() for unit in units]
        return TierUnits([unit for unit in range(100) if unit not in storing], [], storing)


def test_a_scheduler_may_release_late_what_it_stores() -> None:
    """Without `limbo` the judge allows for the blocks of every transfer whose end was not heard."""
    outcome = walk(KVSchedulerModel, StoresWhatWasAborted, 6_000, seed=3)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.reach["store_outlives"] > 0


def test_a_scheduler_that_does_not_report_its_stores_is_blamed() -> None:
    class Silent(StoresWhatWasAborted):
        def transfers(self) -> Sequence[Transfer]:
            return []

    assert walk(KVSchedulerModel, Silent, 6_000, seed=3).failure.law in ("accounting", "leak_freedom")


class SlowCopies(ReleasesLate):
    """A copy takes as many batches as it may."""

    takes = MOST_EMPTY + 1


class SlowerCopies(ReleasesLate):
    takes = MOST_EMPTY + 2


def one_in_limbo(scheduler: type[ReleasesLate]) -> SchedulerJudge:
    """Both blocks of the pool are in limbo, and a request waits that needs one."""
    judge = SchedulerJudge(scheduler(2, 2, 1, 1), 1, 1)
    judge.add("r0", [0], None, 3, None)
    judge.add("r1", [0], None, 1, None)
    for _ in range(3):
        judge.schedule([1])
        judge.update()
    assert judge.live.keys() == {"r1"}
    assert judge.adapter.limbo() == 4
    return judge


@pytest.mark.parametrize("scheduler", [ReleasesLate, ReleasesBehindBatch, SlowCopies])
def test_batches_may_be_empty_while_nobody_fits_beside_what_is_in_limbo(scheduler: type[ReleasesLate]) -> None:
    require_usable("kv_scheduler", scheduler.__name__, scheduler)
    empty = scheduler.takes - (0 if scheduler is ReleasesBehindBatch else 1)
    assert str(one_in_limbo(scheduler).drain([1])).startswith(f"{empty + 1} batches")
    outcome = walk(KVSchedulerModel, scheduler, 6_000, seed=3)
    assert outcome.failure is None, failure_page(outcome.failure)


def test_limbo_is_no_reason_for_more_empty_batches_than_that() -> None:
    with pytest.raises(Divergence, match="an empty batch, though r1 waits for nothing, and limbo=4 is no reason"):
        one_in_limbo(SlowerCopies).drain([1])


def test_limbo_is_no_reason_where_all_fit_beside_it() -> None:
    judge = SchedulerJudge(WaitsForLimbo(4, 2, 1, 1), 1, 1)
    for name in ("r0", "r1"):
        judge.add(name, [0], None, 1, None)
    judge.schedule([1])
    judge.update()
    with pytest.raises(Divergence, match="an empty batch, though r1 waits for nothing, and limbo=2 is no reason"):
        judge.schedule([1])


def test_a_scheduler_that_releases_late_needs_the_trait() -> None:
    silent = type("Silent", (ReleasesLate,), {"late_release": False})
    assert walk(KVSchedulerModel, silent, 6_000, seed=3).failure.law in ("accounting", "leak_freedom", "progress")


def test_what_is_in_limbo_for_ever_is_seen() -> None:
    assert walk(KVSchedulerModel, LimboStays, 6_000, seed=3).failure.law == "progress"


class GroupsReleaseLate(TwoPoolScheduler):
    """The blocks of a request that has ended come back to their pools at the second batch after."""

    can_reset = False
    late_release = True

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._copying: list[tuple[int, str, list[int]]] = []

    def schedule(self) -> Batch:
        for left, pool, blocks in self._copying:
            for block in reversed(blocks) if left == 1 else ():
                self._kv._pools[pool].drop(block)
        self._copying = [(left - 1, *rest) for left, *rest in self._copying if left > 1]
        return super().schedule()

    def abort(self, rid: str) -> None:
        for g, group in enumerate(self.groups) if self._runs(rid) else ():
            blocks = list(self.held(rid, g))
            for block in blocks:
                self._kv._pools[group.pool].hold(block)
            self._copying.append((2, group.pool, blocks))
        super().abort(rid)

    def limbo(self, pool: str) -> int:
        of_pool = [g for g, group in enumerate(self.groups) if group.pool == pool]
        held = {block for request in self._kv._live.values() for g in of_pool for block in request.held(g)}
        return len({block for _, name, blocks in self._copying for block in blocks if name == pool} - held)


class GroupsNeverRelease(GroupsReleaseLate):
    def schedule(self) -> Batch:
        self._copying = [(3, *rest) for _, *rest in self._copying]
        return super().schedule()


class GroupsWaitForLimbo(GroupsReleaseLate):
    def schedule(self) -> Batch:
        most, self._most = self._most, 0 if any(left > 1 for left, *_ in self._copying) else self._most
        batch = super().schedule()
        self._most = most
        return batch


def test_limbo_in_a_pool_is_no_reason_where_all_fit_beside_it() -> None:
    found = walk(KVSchedulerModel, GroupsWaitForLimbo, 6_000, seed=3).failure
    assert found.law == "progress"
    assert "is no reason" in found.message


def test_each_pool_of_a_scheduler_with_groups_may_release_late() -> None:
    require_usable("kv_scheduler", "late", GroupsReleaseLate)
    outcome = walk(KVSchedulerModel, GroupsReleaseLate, 6_000, seed=3)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert walk(KVSchedulerModel, GroupsNeverRelease, 6_000, seed=3).failure.law == "progress"
