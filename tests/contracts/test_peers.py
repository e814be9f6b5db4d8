"""A peer under a kv_scheduler: another instance fills a tier, the tier loses units, and what has ended is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvlockstep.impl.variants.peers import SendsBeforePreemption
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import NotEnabled
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_scheduler.judge import SchedulerJudge
from kvlockstep.models.requests.transfers.delivery import Delivery, Owed
from kvlockstep.properties import transfers as laws
from kvlockstep.reference.kv_scheduler.peered import PeeredScheduler
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


def judge(make: Callable[..., Any] = PeeredScheduler, blocks: int = 4) -> SchedulerJudge:
    return SchedulerJudge(make(blocks, 2, 8, 4), 8, 4)


def loading(run: SchedulerJudge) -> SchedulerJudge:
    """A request waits for a load of two blocks that were offered."""
    run.add("a", [1, 2, 3, 4, 5], None, 1, None)
    assert str(run.schedule([9])) == "nothing"
    run.update()
    return run


def test_what_a_peer_offers_is_a_hit() -> None:
    run = judge()
    assert str(run.offer([1, 2, 3, 4, 5], None)) == "units 0,1"
    loading(run)
    assert str(run.complete(0)) == "load 0 landed"
    run.poll()
    assert str(run.schedule([9])) == "a[4:5]"


@pytest.mark.parametrize(("unit", "item"), [(0, "a[0:5]"), (1, "a[0:5]")])
def test_a_load_ends_at_the_unit_that_is_lost(unit: int, item: str) -> None:
    run = judge()
    run.offer([1, 2, 3, 4, 5], None)
    run.lose("host", unit)
    with pytest.raises(NotEnabled):
        run.lose("host", unit)
    loading(run)
    assert str(run.complete_all()) == "load 0 failed"
    run.poll()
    assert run.goals_met["torn"] == unit
    assert str(run.schedule([9])) == item


def test_what_is_offered_again_is_there_again() -> None:
    run = judge()
    run.offer([1, 2, 3, 4, 5], None)
    run.lose("host", 0)
    assert str(run.offer([1, 2], None)) == "units 0"
    assert str(loading(run).complete(0)) == "load 0 landed"


def test_a_unit_that_is_read_is_not_lost() -> None:
    run = judge()
    run.offer([1, 2, 3, 4, 5], None)
    loading(run)
    with pytest.raises(NotEnabled):
        run.lose("host", 0)


@pytest.mark.parametrize("answer", [[0], [0, 99], None, [0, "x"]])
def test_an_answer_to_an_offer_that_the_contract_does_not_know(answer: Any) -> None:
    class Answers(PeeredScheduler):
        def offer(self, tokens: list[int], extra_key: int | None) -> Sequence[int | None]:
            found: Sequence[int | None] = answer
            return found

    with pytest.raises(Divergence, match="offer"):
        judge(Answers).offer([1, 2, 3, 4], None)


def test_a_durable_scheduler_stores_what_has_ended() -> None:
    class Forgets(PeeredScheduler):
        def _store(self, key: Any, block: int) -> None:
            pass

    run = judge(Forgets)
    run.add("a", [1, 2, 3, 4, 5], None, 1, None)
    run.schedule([9])
    assert str(run.update()) == "ended a"
    with pytest.raises(Divergence, match="a has ended, and the KV of its positions 0 to 2 was never stored"):
        run.poll()
    again = judge(type("Promises", (Forgets,), {"durable": False}))
    again.add("a", [1, 2, 3, 4, 5], None, 1, None)
    again.schedule([9])
    again.update()
    again.poll()


def test_what_the_peer_has_need_not_be_stored() -> None:
    delivery = Delivery(patience=1)
    delivery.sent((1, 2))
    owed = Owed("a", [(1, 2), (3, 4)], size=2)
    delivery.owe(owed)
    assert delivery.due() == []
    delivery.step()
    assert delivery.due() == [(owed, [1])]
    assert delivery.due() == []
    assert laws.delivery("a", [], 2) is None


def test_a_request_that_ends_behind_its_preemption_is_stored() -> None:
    run = SchedulerJudge(SendsBeforePreemption(3, 1, 3, 2), 3, 2)
    run.add("a", [7], None, 2, None)
    run.add("b", [8, 9], None, 1, None)
    assert str(run.schedule([1])) == "a[0:1] b[0:2]"
    assert "preempted b" in str(run.schedule([1]))
    assert str(run.update()) == "ended b"
    assert run.goals_met["sent_preempted"] == 1
    run.poll()


def test_commands_and_laws_of_a_peer_are_for_targets_that_have_one() -> None:
    tiered = KVSchedulerModel(KVSchedulerModel.scopes[0], TieredScheduler)
    peered = KVSchedulerModel(KVSchedulerModel.scopes[0], PeeredScheduler)
    assert {c.name for c in peered.table} - {c.name for c in tiered.table} == {"offer", "lose"}
    assert {c.name for c in KVSchedulerModel.commands_for(PeeredScheduler)} == {c.name for c in peered.table}
    assert "delivery" not in tiered.not_checked()
    assert laws.delivery not in KVSchedulerModel.laws_in_play({"backed": 1})
    assert laws.delivery in KVSchedulerModel.laws_in_play({"backed": 1, "delivery": 1})
    for operation in (lambda: tiered.judge.offer([1, 2], None), lambda: tiered.judge.lose("host", 0)):
        with pytest.raises(NotEnabled):
            operation()
