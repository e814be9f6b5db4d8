"""Transfers of kv_scheduler: right schedulers pass in any order of completion, and the judge names what is wrong."""

from __future__ import annotations

import contextlib
import random
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from driving import explore, walk
from places import DOCS

from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.impl.kv_scheduler.fenced import FencedScheduler
from kvlockstep.impl.variants.kv_scheduler import VARIANTS
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import NotEnabled, Op
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_scheduler.judge import SchedulerJudge
from kvlockstep.models.kv_scheduler.model import SchedulerScope
from kvlockstep.properties import transfers as laws
from kvlockstep.reference.kv.transfers import TierUnits, Transfer
from kvlockstep.reference.kv_scheduler import KVScheduler
from kvlockstep.reference.kv_scheduler.peered import PeeredScheduler
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler

# One block is stored, and loaded again, in every order of completion.
SMALL = (
    SchedulerScope(3, 1, budget=2, running=2, live=2, outputs=1, tokens=(1,), priorities=(0,), exhaustive=True),
    SchedulerScope(2, 1, budget=2, running=1, live=2, outputs=1, tokens=(1, 2), priorities=(0,), exhaustive=True),
)


def judge(make: Callable[..., Any] = TieredScheduler, sizes: tuple[int, int] = (4, 2)) -> SchedulerJudge:
    return SchedulerJudge(make(*sizes, 8, 4), 8, 4)


def stored(make: Callable[..., Any] = TieredScheduler, sizes: tuple[int, int] = (4, 2)) -> SchedulerJudge:
    """A request has ended, and the store of its first block is in flight."""
    run = judge(make, sizes)
    run.add("a", [1, 2, 3], None, 1, None)
    run.schedule([5])
    assert str(run.update()) == "ended a"
    return run


class ForgetsPool(TieredScheduler):
    """The pool keeps nothing that no request holds, so that every hit comes from the tier."""

    def poll(self) -> None:
        self._kv.evict_all()
        super().poll()


def loading(make: Callable[..., Any] = ForgetsPool) -> SchedulerJudge:
    """The same prompt comes again, and waits for the load of its first block."""
    run = stored(make)
    run.complete(0)
    run.poll()
    run.poll()
    run.add("b", [1, 2, 3], None, 2, None)
    assert str(run.schedule([5])) == "nothing"
    run.update()
    return run


@pytest.mark.parametrize("scope", SMALL, ids=str)
@pytest.mark.parametrize("scheduler", [TieredScheduler, FencedScheduler, PeeredScheduler, VARIANTS["loads-inside"]])
def test_every_order_of_completion_in_small_scopes(scheduler: Callable[..., Any], scope: SchedulerScope) -> None:
    with Watchdog(5.0).watching() as watchdog:
        outcome = explore(KVSchedulerModel, scheduler, scope, watchdog=watchdog, steps=3_000)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.reach["store"] > 0


def test_a_store_is_released_when_its_end_is_heard() -> None:
    run = stored()
    assert run.adapter.limbo() == 2
    assert run.avail == 6
    assert str(run.complete(0)) == "store 0 landed"
    assert run.avail == 6
    run.poll()
    assert (run.adapter.limbo(), run.avail) == (0, 8)


def test_a_request_waits_for_its_load_and_starts_with_a_hit() -> None:
    run = loading()
    assert run.adapter.queues()["waiting"] == ["b"]
    run.complete(0)
    run.poll()
    assert str(run.schedule([6])) == "b[2:3]"


def test_what_could_not_be_loaded_is_computed() -> None:
    run = loading()
    run.fail(0)
    run.poll()
    assert str(run.schedule([6])) == "b[0:3]"


def overtaking(name: str) -> SchedulerJudge:
    """The request b waits for its load, and c, which came later, has started."""
    run = loading(type("Made", (ForgetsPool, VARIANTS[name]), {}))
    run.add("c", [2], None, 4, None)
    assert str(run.schedule([5])) == "c[0:1]"
    run.update()
    return run


@pytest.mark.parametrize("name", ["lets-overtake", "holds-loaded"])
def test_who_waits_for_a_load_may_be_overtaken_until_it_has_ended(name: str) -> None:
    run = overtaking(name)
    run.complete(0)
    run.poll()
    run.add("d", [2, 1], None, 1, None)
    run.adapter._waiting.sort(key=lambda job: job.rid != "d")
    run.adapter._comes_later = lambda job: job.rid != "d"
    run.adapter._most = 2
    with pytest.raises(Divergence, match="d was admitted, but by fcfs b comes first") as found:
        run.schedule([5])
    assert found.value.law == "admission_order"


def test_who_has_overtaken_another_stays_in_front_of_it() -> None:
    run = overtaking("lets-overtake")
    assert run.overtaken == {("c", "b")}
    run.complete(0)
    run.poll()
    run.adapter._preempt(run.adapter._running[0], [])
    run._check_preempted(["c"])
    run.adapter._most = 1
    assert str(run.schedule([6])).startswith("c[0:2]")


@pytest.mark.parametrize("held", [False, True], ids=["held-nothing", "held-until-this-batch"])
def test_who_has_started_in_front_of_another_in_the_same_batch_stays_in_front_of_it(held: bool) -> None:
    run = stored(type("Made", (ForgetsPool, VARIANTS["holds-loaded"]), {}))
    run.complete(0)
    run.poll()
    run.poll()
    run.add("older", [4], None, 4, None)
    run.schedule([5])
    run.update()
    run.add("loaded", [1, 2, 3], None, 4, None)
    run.schedule([5])
    run.update()
    run.complete_all()
    run.poll()
    preempt(run, "older")
    if held:
        run.holding.add("older")
    assert str(run.schedule([5])) == "loaded[2:3] older[2:3]"
    run.update()
    preempt(run, "older", "loaded")
    run.adapter._most = 1
    assert str(run.schedule([6])).startswith("loaded[2:4]")


def preempt(run: SchedulerJudge, *names: str) -> None:
    """The scheduler preempts these requests, one after the other."""
    for name in names:
        run.adapter._preempt(next(job for job in run.adapter._running if job.rid == name), [])
    run._check_preempted(names)


def test_what_is_held_goes_first_only_where_the_target_says_so() -> None:
    assert "sched-loaded-before-older" in FAULTS
    strict, said = FAULTS["sched-loaded-before-older"].make, VARIANTS["holds-loaded"]
    assert (strict.loaded_first, said.loaded_first) == (False, True)
    assert walk(KVSchedulerModel, said, 3_000).failure is None
    failure = walk(KVSchedulerModel, strict, 3_000).failure
    assert failure is not None
    assert failure.law == "admission_order"


def test_the_grammar() -> None:
    run = judge()
    for operation in (lambda: run.complete(0), lambda: run.fail(0), run.complete_all):
        with pytest.raises(NotEnabled):
            operation()
    with pytest.raises(NotEnabled):
        judge(KVScheduler).poll()
    run = stored()
    with pytest.raises(NotEnabled):
        run.complete(1)
    with pytest.raises(NotEnabled):
        run.tear(0, 1)  # a store, of one block
    with pytest.raises(NotEnabled):
        run.reset()
    run = stored(type("Reliable", (TieredScheduler,), {"fails": "loads"}))
    with pytest.raises(NotEnabled):
        run.fail(0)


def test_what_the_worker_has_waited_for_has_not_failed() -> None:
    run = stored(FencedScheduler, (2, 2))
    run.add("b", [7, 8, 9], None, 1, None)
    run.schedule([5])
    assert run.goals_met["waited"] == 1
    with pytest.raises(NotEnabled):
        run.fail(0)
    assert str(run.complete(0)) == "store 0 landed"


@pytest.mark.parametrize("name", [id for id, fault in FAULTS.items() if fault.make.__module__.endswith(".transfers")])
def test_a_target_without_tiers_has_no_such_fault(name: str) -> None:
    assert FAULTS[name].contract == "kv_scheduler"
    assert FAULTS[name].make(4, 2, 8, 4).tiers


def test_commands_of_transfers_are_for_targets_with_tiers() -> None:
    plain = KVSchedulerModel(KVSchedulerModel.scopes[0], KVScheduler)
    tiered = KVSchedulerModel(KVSchedulerModel.scopes[0], TieredScheduler)
    extra = {command.name for command in tiered.table} - {command.name for command in plain.table}
    assert extra == {"complete", "fail", "tear", "abort_loading", "poll"}
    assert {c.name for c in KVSchedulerModel.commands_for(KVScheduler)} == {c.name for c in plain.table}
    assert {c.name for c in KVSchedulerModel.commands_for(TieredScheduler)} == {c.name for c in tiered.table}


def proposals(model: KVSchedulerModel, name: str) -> list[Op]:
    """What a command proposes in 200 tries."""
    rng = random.Random(1)
    command = next(command for command in model.commands if command.name == name)
    found = []
    for _ in range(200):
        with contextlib.suppress(NotEnabled):
            found.append(model.propose(command, rng.choice))
    return found


def after(make: Callable[..., Any], *ops: Op) -> KVSchedulerModel:
    """A model behind some operations, all of which are legal."""
    model = KVSchedulerModel(
        SchedulerScope(8, 1, budget=8, running=4, live=4, outputs=1, tokens=tuple(range(50))), make
    )
    for op in ops:
        model.step(op)
    return model


def arrives(name: str, *tokens: int) -> Op:
    return Op("add", request=name, tokens=list(tokens), extra_key=None, max_tokens=1, priority=None)


STORED = (
    arrives("a", 1, 2, 1),
    Op("schedule", tokens=[2]),
    Op("update"),
    Op("complete_all"),
    Op("poll"),
    Op("poll"),
)


@pytest.mark.parametrize(("make", "often"), [(ForgetsPool, True), (TieredScheduler, False)])
def test_requests_begin_with_what_a_tier_has_and_the_pool_has_not(make: Callable[..., Any], often: bool) -> None:
    model = after(make, *STORED)
    # Then no prompt comes again because it was one of the last.
    model.history.clear()
    begun = [tuple(op.args["tokens"][:-1]) for op in proposals(model, "add")]
    found = [tokens for tokens in begun if tokens in {(1,), (1, 2), (1, 2, 1)}]
    assert (60 < len(found) < 140) if often else len(found) < 20


def test_the_pool_has_what_was_loaded_before_anybody_writes_to_it() -> None:
    model = after(ForgetsPool, *STORED, arrives("b", 1, 2, 1, 2), Op("schedule", tokens=[2]), Op("update"))
    places = model.judge.tiered().places
    assert [places.prefix(content) for content in places.kept()] == [(None, (1,)), (None, (1, 2)), (None, (1, 2, 1))]
    model.step(Op("complete_all"))
    assert places.kept() == []


def test_what_can_be_torn_is_torn_whatever_else_is_in_flight() -> None:
    batch = Op("schedule", tokens=[2]), Op("update")
    model = after(ForgetsPool, *STORED, arrives("b", 2, 2), arrives("c", 1, 2, 1, 2), *batch)
    kinds = [(moving.transfer.kind, len(moving.targets)) for moving in model.judge.tiered().unended]
    assert kinds == [("load", 3), ("store", 1), ("store", 1)]
    found = proposals(model, "tear")
    assert len(found) == 200
    assert {op.args["transfer"] for op in found} == {0}
    assert {op.args["written"] for op in found} == {1, 2}


def test_results_speak_of_transfers_only_where_there_are_any() -> None:
    assert laws.backed not in KVSchedulerModel.laws_in_play({"accounting": 3})
    assert laws.backed in KVSchedulerModel.laws_in_play({"target_owned": 1})


def reports(transfer: Transfer) -> type[TieredScheduler]:
    class Reports(TieredScheduler):
        def transfers(self) -> Sequence[Transfer]:
            return [transfer]

    return Reports


@pytest.mark.parametrize(
    ("transfer", "message"),
    [
        (Transfer(1, "store", "disk", [(0, 0)]), "names the tier 'disk'"),
        (Transfer(1, "store", "host", []), "has no pairs"),
        (Transfer(1, "store", "host", [(0, 99)]), "a unit beyond the 8 of host"),
        (Transfer(1, "swap", "host", [(0, 0)]), "is of the kind 'swap'"),  # type: ignore[arg-type]
        (Transfer(1, "move", "host", [(0, 0)], source="disk"), "is a move, and the target does not declare moves"),
    ],
)
def test_a_transfer_that_the_contract_does_not_know(transfer: Transfer, message: str) -> None:
    with pytest.raises(Divergence, match=re.escape(message)):
        judge(reports(transfer))


def test_laws_say_what_is_wrong() -> None:
    assert "overwrites it before" in str(laws.source_stable("store 1", "block 2", "load 3 overwrites it"))
    assert "r1 writes block 2" in str(laws.transfer_isolation("r1", 2, "store 1"))
    assert "which is free" in str(laws.target_owned("load 1", "block 2", "free"))
    assert "unit 1 of host stands twice" in str(laws.tier_accounting("host", [0, 1, 1], 3))
    assert "are 2 units of host, which has 3" in str(laws.tier_accounting("host", [0, 1], 3))
    assert "2 slots are in limbo" in str(laws.quiescence([], 2))
    assert "unit 0 of host is pinned" in str(laws.quiescence(["unit 0 of host"], 0))
    assert "the batch of r1, r2 is in flight" in str(laws.stream_order("load 1", 2, ["r1", "r2"]))
    assert laws.transfer_progress("r1", 2, 2) is None
    assert "loaded for 3 times" in str(laws.transfer_progress("r1", 3, 2))
    lost, late = (laws.Source("load 1", "unit 0 of host", got) for got in (laws.LOST, laws.NOT_LANDED))
    assert "what a failed transfer left" in str(laws.failure_visible(lost))
    assert laws.failure_visible(late) is None
    assert laws.load_before_read(late)


class Engine(TieredScheduler):
    """What docs/transfers.md wraps, with the names that it invents."""

    drafts = 0

    def __init__(self, blocks: int, block_size: int, budget: int, running: int, copies: Any) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._copies = copies
        self.add_request = lambda rid, tokens, most: self.add(rid, tokens, None, most, 0)
        self.process, self.slots_of, self.report, self.tick = self.update, self.slots, self.complete, self.poll
        self.fences = self.waits

    def schedule(self) -> Any:
        batch = super().schedule()
        return SimpleNamespace(rows=batch.items, preempted=batch.preempted)

    @property
    def waiting(self) -> Sequence[str]:
        return self.queues()["waiting"]

    @property
    def running(self) -> Sequence[str]:
        return self.queues()["running"]

    @property
    def host(self) -> Any:
        units: TierUnits = self.tier("host")
        return SimpleNamespace(size=self.tiers["host"], **units._asdict())

    def available_blocks(self) -> int:
        return self.avail() // self.block_size

    def pinned_blocks(self) -> int:
        return self.limbo() // self.block_size

    def _submit(self, kind: str, pairs: list[tuple[int, int]], *rids: str, before: bool = False) -> Any:
        id = super()._submit(kind, pairs, *rids, before=before)
        self._copies.submit(SimpleNamespace(id=id, kind=kind, pairs=pairs, request_ids=rids))
        return id


def test_the_adapter_of_the_page_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = re.findall(r"```python\n(.*?)```", (DOCS / "transfers.md").read_text(), re.DOTALL)
    assert len(source.splitlines()) <= 60
    module = ModuleType("my_engine")
    module.__dict__.update(Scheduler=Engine)
    monkeypatch.setitem(sys.modules, "my_engine", module)
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    outcome = walk(KVSchedulerModel, namespace["MyScheduler"], 4_000)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.reach["load"] > 0
