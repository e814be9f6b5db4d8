"""A kv_manager that loads inside admission: who waits, what may happen meanwhile, and who goes on with what."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable
from types import SimpleNamespace
from typing import Any

import pytest
from driving import explore, walk
from places import DOCS
from slow import slow

from kvlockstep.core.errors import UsageError
from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.impl.faulty.kv_manager.loading import ForgetsPool
from kvlockstep.impl.kv_manager.fenced import FencedManager
from kvlockstep.impl.variants.loading import LOADING_VARIANTS
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import NotEnabled
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.goals import unreachable
from kvlockstep.models.kv_manager.judge import ManagerJudge
from kvlockstep.models.kv_manager.scope import TIER_SCOPES
from kvlockstep.models.requests.slot_memory import SlotMemory
from kvlockstep.properties.kv_manager import loading as laws
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.reference.kv.transfers import Loading
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_manager.tiered import TieredManager
from kvlockstep.runs.record import record
from kvlockstep.runs.request_player import play

PROMPT = [1, 2, 3, 4, 5]


def judge(make: Callable[..., Any] = ForgetsPool, blocks: int = 8) -> ManagerJudge:
    return ManagerJudge(make(blocks, 2), SlotMemory)


def stored(make: Callable[..., Any] = ForgetsPool, blocks: int = 8) -> ManagerJudge:
    """A request has come and gone, and its two blocks are in the tier only."""
    run = judge(make, blocks)
    run.admit("a", PROMPT, None, 5)
    run.forward(None, [], None)
    run.finish("a")
    run.complete_all()
    run.poll()
    return run


def loading(make: Callable[..., Any] = ForgetsPool) -> ManagerJudge:
    """The same prompt comes again, and waits for its load."""
    run = stored(make)
    assert str(run.admit("b", PROMPT, None, 5)) == "loading 4"
    return run


@pytest.mark.parametrize("manager", [TieredManager, *slow(FencedManager, LOADING_VARIANTS["loads-in-step"])])
def test_every_order_of_completion_in_a_small_scope(manager: Callable[..., Any]) -> None:
    assert KVManagerModel.small_scopes_of(manager)[0] in TIER_SCOPES
    with Watchdog(5.0).watching() as watchdog:
        outcome = explore(KVManagerModel, manager, *TIER_SCOPES, watchdog=watchdog, max_depth=8)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.reach["load"] > 0


@pytest.mark.slow
def test_every_state_with_stores_and_loads_in_a_tier_of_one_unit() -> None:
    class OneUnit(TieredManager):
        def _tier_size(self, _blocks: int) -> int:
            return 1

    with Watchdog(5.0).watching() as watchdog:
        outcome = explore(KVManagerModel, OneUnit, *TIER_SCOPES, watchdog=watchdog)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.exhausted
    assert all(outcome.reach[goal] for goal in ("store", "store_fails", "load", "load_fails", "abort_loading"))


def test_one_hit_may_be_loaded_by_several_transfers() -> None:
    class BlockByBlock(TieredManager):
        fails = None

        def _load(self, rid: str, found: dict[Any, int], blocks: list[int]) -> None:
            for (key, unit), block in zip(found.items(), blocks, strict=True):
                super()._load(rid, {key: unit}, [block])

    outcome = walk(KVManagerModel, BlockByBlock, 4_000)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.reach["load_blocks"]


def test_who_loads_goes_on_behind_what_was_loaded() -> None:
    run = loading()
    assert str(run.ready("b")) == "still loading"
    assert str(run.complete(0)) == "load 2 landed"
    assert str(run.ready("b")) == "still loading", "nothing was polled"
    run.poll()
    assert str(run.ready("b")) == "cached 4"
    run.chunk("b", 1)
    run.forward(None, [], None)
    assert run.live["b"].computed == 5


def test_who_loads_is_neither_scheduled_nor_finished() -> None:
    run = loading()
    for operation in (
        lambda: run.chunk("b", 1),
        lambda: run.decode("b", 1, []),
        lambda: run.finish("b"),
        lambda: run.fork("b", "c"),
        run.reset,
        lambda: run.ready("a"),
        lambda: run.withdraw("b"),
    ):
        with pytest.raises(NotEnabled):
            operation()
    assert list(run.loading) == ["b"]


def test_what_could_not_be_loaded_is_computed() -> None:
    run = loading()
    run.tear(0, 1)
    run.poll()
    assert str(run.ready("b")) == "cached 0"
    run.chunk("b", 5)
    run.forward(None, [], None)
    assert run.live["b"].computed == 5


def test_a_request_without_chunks_takes_the_rest_at_once() -> None:
    run = loading(type("Whole", (ForgetsPool,), {"chunk": False}))
    run.complete(0)
    run.poll()
    assert not run.allows("chunk")
    run.ready("b")
    assert run.allows("chunk")
    run.chunk("b", 1)
    assert not run.allows("chunk")


@pytest.mark.parametrize("way", ["abort", "preempt"])
def test_the_target_of_a_load_stays_its_own_when_its_request_is_gone(way: str) -> None:
    run = loading()
    getattr(run, way)("b")
    assert (run.adapter.limbo(), run.avail) == (4, 12)
    run.complete(0)
    assert run.avail == 12
    run.poll()
    assert (run.adapter.limbo(), run.avail) == (0, 16)


def test_a_request_that_was_preempted_does_not_go_on_by_its_earlier_load() -> None:
    run = loading()
    run.preempt("b")
    run.complete(0)
    assert str(run.resume("b", 5)) == "loading 4"
    run.poll()
    assert str(run.ready("b")) == "still loading"


def test_transfers_end_within_a_step_and_are_heard_of_between_steps() -> None:
    run = loading()
    run.admit("c", [9], None, 1)
    run.complete(0)
    for operation in (run.poll, lambda: run.ready("b"), lambda: run.abort("b")):
        with pytest.raises(NotEnabled):
            operation()
    run.forward(None, [], None)
    run.poll()
    assert str(run.ready("b")) == "cached 4"
    assert run.goals_met["load_beside"] == 1


def test_what_a_plain_answer_counts_on_does_not_fail() -> None:
    run = stored(type("Made", (LOADING_VARIANTS["loads-in-step"], ForgetsPool), {"fails": "any"}))
    assert str(run.admit("b", PROMPT, None, 5)) == "cached 4"
    with pytest.raises(NotEnabled):
        run.fail(0)
    run.forward(None, [], None)
    assert run.live["b"].computed == 5
    assert [moving.landed for moving in run.tiered().moving.values()][:1] == [True]
    with pytest.raises(NotEnabled):
        run.fail(0)
    run.complete(0)


def test_a_load_in_front_of_its_step_is_not_heard_of_in_it() -> None:
    class Before(LOADING_VARIANTS["loads-in-step"], ForgetsPool):  # type: ignore[misc]
        def transfers(self) -> Any:
            return [transfer._replace(before=True) for transfer in super().transfers()]

    run = stored(Before)
    run.admit("b", PROMPT, None, 5)
    run.forward(None, [], None)
    assert len(run.tiered().unended) == 1, "it has landed, and nobody was told"


def test_what_is_held_for_a_load_is_not_room_for_others() -> None:
    run = stored(blocks=3)
    assert str(run.admit("b", PROMPT, None, 5)) == "loading 4"
    assert str(run.admit("c", [9], None, 1)) == "refused"
    run.preempt("b")
    assert str(run.admit("d", [9, 9, 9], None, 3)) == "refused", "the load still writes two of three blocks"


@pytest.mark.parametrize("make", [FencedManager, FAULTS["kv-load-store-unfenced"].make])
def test_a_step_waits_for_the_stores_of_what_it_writes(make: Callable[..., Any]) -> None:
    run = judge(make, blocks=2)
    for name, tokens in (("a", [1, 2, 3]), ("b", [7, 8, 9])):
        run.admit(name, tokens, None, 3)
        if (name, make) == ("b", FAULTS["kv-load-store-unfenced"].make):
            with pytest.raises(Divergence, match="b writes block 0 in the batch, and store 0 has not landed"):
                run.forward(None, [], None)
            return
        run.forward(None, [], None)
        run.finish(name)
    assert run.goals_met["waited"] == 1


def test_what_was_waited_for_inside_a_call_has_landed() -> None:
    run = judge(LOADING_VARIANTS["waits-inside"], blocks=2)
    for name, first in (("a", 1), ("b", 7)):
        run.admit(name, [first, 2, 3], None, 3)
        run.forward(None, [], None)
        run.finish(name)
    transfers = run.tiered()
    assert not transfers.moving
    assert run.goals_met["store"] == run.goals_met["waited"] == 1
    assert len(run.adapter.tier("host").cached) == 1
    assert {"store_outlives", "reordered"} <= unreachable(run), "no transfer was ever apart from its call"
    assert str(run.admit("c", [1, 2, 3], None, 3)) == "loading 2"
    assert "reordered" not in unreachable(run), "a load is"


def test_a_hit_may_be_loaded_by_the_launch_of_its_step() -> None:
    run = stored(type("Made", (LOADING_VARIANTS["loads-at-launch"], ForgetsPool), {}))
    assert str(run.admit("b", PROMPT, None, 5)) == "cached 4"
    assert not run.tiered().moving
    run.forward(None, [], None)
    assert [str(moving) for moving in run.tiered().moving.values()] == ["load 2"]


def test_a_hit_that_nothing_is_loaded_for_counts_in_the_pool_alone() -> None:
    class SaysItHasGoneDown(LOADING_VARIANTS["announces-tiers"]):  # type: ignore[misc]
        """Announces of the pool only what the tier does not have."""

        def _notice(self) -> None:
            tier = self._tier._cached
            pool = {key: block for key, block in self._cached.items() if key not in tier}
            self._events += self._announcer.changes({None: pool, "host": tier})

    run = judge(SaysItHasGoneDown)
    run.admit("a", PROMPT, None, 5)
    run.forward(None, [], None)
    run.complete_all()
    run.poll()
    assert str(run.admit("b", PROMPT, None, 5)) == "cached 4"
    with pytest.raises(Divergence, match=r"4 tokens of .* were hit, but the events say 0") as found:
        run.forward(None, [], None)
    assert found.value.law == "event_consistency"


def test_a_manager_without_tiers_cannot_answer_so() -> None:
    class Early(KVManager):
        def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> Any:
            cached = super().admit(rid, tokens, extra_key, n)
            return None if cached is None else Loading(cached)

    with pytest.raises(Divergence, match="admit returned Loading") as found:
        judge(Early).admit("a", [1], None, 1)
    assert found.value.law == "error_contract"


def test_commands_and_laws_of_transfers_are_for_managers_with_tiers() -> None:
    extra = {"complete", "fail", "tear", "poll", "ready", "abort_loading", "preempt_loading"}
    plain = KVManagerModel(KVManagerModel.scopes[0], KVManager)
    tiered = KVManagerModel(KVManagerModel.scopes[0], TieredManager)
    assert plain.table == plain.command_table
    assert {c.name for c in tiered.table} - {c.name for c in plain.table} == extra
    assert {c.name for c in KVManagerModel.commands_for(KVManager)} == {c.name for c in plain.table}
    assert laws.load_ends not in KVManagerModel.laws_in_play({"accounting": 3})
    assert laws.backed in KVManagerModel.laws_in_play({"target_owned": 1})
    assert laws.load_ends not in KVManagerModel.laws_in_play({"target_owned": 1}), "nobody has waited"
    assert laws.load_ends in KVManagerModel.laws_in_play({"target_owned": 1, "load_ends": 1})
    assert not {"backed", "load_ends"} & plain.not_checked().keys()


def test_laws_say_what_is_wrong() -> None:
    assert laws.load_ends("r1", True, ["load 0"]) is None
    assert laws.load_ends("r1", False, []) is None
    assert "no transfer is in flight" in str(laws.load_ends("r1", True, []))
    assert laws.promise_kept("r1", 2, 4, True) is None
    assert laws.promise_kept("r1", 4, 4, False) is None
    assert "promised 4 tokens and is ready with 2" in str(laws.promise_kept("r1", 2, 4, False))


def test_the_methods_of_the_page_hold() -> None:
    """docs/transfers.md has two methods of a manager over an engine with invented names."""
    _, source = re.findall(r"```python\n(.*?)```", (DOCS / "transfers.md").read_text(), re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(source, namespace)

    class Engine(TieredManager):
        def admit(self, rid: str, tokens: list[int], n: int) -> Any:  # type: ignore[override]
            said = super().admit(rid, tokens, None, n)
            if said is None:
                return None
            loads = isinstance(said, Loading)
            return SimpleNamespace(loads=loads, promised=said.cached if loads else 0, computed=said)

        @property
        def requests(self) -> Any:
            ready = {rid: self.ready(rid) for rid in self._live}
            return {rid: SimpleNamespace(loads=cached is None, computed=cached) for rid, cached in ready.items()}

    class Adapter(namespace["MyManager"]):  # type: ignore[misc]
        fails, late_release, chunk = "any", True, True

        def __init__(self, blocks: int, block_size: int) -> None:
            self.engine = Engine(blocks, block_size)
            self.block_size, self.total, self.tiers = block_size, self.engine.total, self.engine.tiers

        def __getattr__(self, name: str) -> Any:
            if name not in CONTRACTS["kv_manager"].methods:
                raise AttributeError(name)
            return getattr(self.engine, name)

    outcome = walk(KVManagerModel, Adapter, 3_000)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.reach["load_beside"] > 0


def test_what_plays_a_manager_without_waiting_says_so(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="has tiers"):
        play([], TieredManager(4, 2))
    with pytest.raises(UsageError, match="tiers"):
        record(TieredManager(4, 2), tmp_path / "trace.jsonl")


@pytest.mark.parametrize(
    "command", [("diff", "--target", "tiered", "--target", "blocks"), ("quality", "--target", "fenced")]
)
def test_commands_that_call_a_manager_themselves_say_so(run_cli: Any, command: tuple[str, ...]) -> None:
    code, _, err = run_cli(*command)
    assert code == 2
    assert "has tiers" in err


class EndsStoresAtCommit(TieredManager):
    """A commit waits for the stores in flight, and takes in their ends."""

    copies_at_commit = True
    fails = "loads"

    def reset(self) -> None:
        super().reset()
        self._waited: list[Hashable] = []

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        fresh = {transfer.id for transfer in self._submitted}
        self._waited += [id for id in self._stores if id not in fresh]
        for id in self._waited:
            self._end_store(self._stores.pop(id), True)
        self._completed = [(id, ok) for id, ok in self._completed if id not in self._waited]

    def waits(self) -> Collection[Hashable]:
        waited, self._waited = self._waited, []
        return waited

    def complete(self, id: Hashable, ok: bool) -> None:
        if id in self._stores or id in self._loads:
            super().complete(id, ok)


def test_a_commit_without_copies_may_wait_for_a_store() -> None:
    outcome = walk(KVManagerModel, EndsStoresAtCommit, 1_500)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.reach["waited"] > 0
