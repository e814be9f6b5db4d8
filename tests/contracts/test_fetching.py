"""Admissions of a kv_manager that wait for a fetch: they hold nothing, ask again, and get another answer in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from driving import explore

from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.impl.faulty.kv_manager.fetching import CachesOnDisk
from kvlockstep.impl.variants.fetching import FETCHING_VARIANTS
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import NotEnabled
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.judge import ManagerJudge
from kvlockstep.models.kv_manager.scope import KVScope, Mode
from kvlockstep.models.requests.slot_memory import SlotMemory
from kvlockstep.properties.kv_manager import loading as laws
from kvlockstep.reference.kv.transfers import Fetching, Loading
from kvlockstep.reference.kv_manager.fetching import FetchingManager
from kvlockstep.reference.kv_manager.tiered import TieredManager

SMALL = KVScope(2, 1, 1, 2, tokens=(1,), mode=Mode.EXHAUSTIVE)
MADE: dict[str, Any] = {"fetching": FetchingManager, **FETCHING_VARIANTS}


def fetching(make: Callable[..., Any] = CachesOnDisk) -> ManagerJudge:
    """The first block of b is on the disk only, and b was told to wait for it."""
    run = ManagerJudge(make(4, 2), SlotMemory)
    run.admit("a", [1, 2, 3], None, 3)
    run.forward(None, [], None)
    run.finish("a")
    for kind in ("store", "move"):
        assert {moving.transfer.kind for moving in run.tiered().unended} == {kind}
        run.complete_all()
        run.poll()
    assert str(run.admit("b", [1, 2, 3], None, 3)) == "fetching"
    return run


@pytest.mark.parametrize("name", MADE)
def test_every_order_of_completion_in_a_small_scope(name: str) -> None:
    with Watchdog(5.0).watching() as watchdog:
        outcome = explore(KVManagerModel, MADE[name], SMALL, watchdog=watchdog, steps=2_000)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.reach["move"] > 0


def test_a_request_asks_again_until_its_fetch_has_ended() -> None:
    run = fetching()
    assert (run.avail, list(run.preempted), dict(run.fetching)) == (8, ["b"], {"b": 1})
    assert str(run.resume("b", 3)) == "fetching"
    run.complete(0)
    assert str(run.resume("b", 3)) == "loading 2"
    assert (list(run.preempted), dict(run.fetching), run.goals_met["moved_load"]) == ([], {}, 1)
    run.complete(0)
    assert str(run.ready("b")) == "cached 2"


def test_others_are_admitted_and_run_beside_it() -> None:
    run = fetching()
    run.admit("c", [7], None, 1)
    run.forward(None, [], None)
    assert run.goals_met["fetch_beside"] == 1


def test_what_could_not_be_fetched_is_computed() -> None:
    run = fetching()
    run.fail(0)
    assert str(run.resume("b", 3)) == "cached 0"


def test_what_the_disk_has_lost_is_computed() -> None:
    run = fetching()
    with pytest.raises(NotEnabled):
        run.lose("disk", 0)
    run.complete(0)
    run.abort("b")
    run.poll()
    run.lose("disk", 0)
    assert str(run.admit("c", [1, 2, 3], None, 3)) == "fetching"
    assert str(run.complete(0)) == "move 3 failed"
    assert run.goals_met["lost"] == 1
    assert str(run.resume("c", 3)) == "cached 0"


def test_a_request_leaves_while_it_waits() -> None:
    run = fetching()
    run.abort("b")
    assert (list(run.preempted), dict(run.fetching), run.goals_met["abort_fetching"]) == ([], {}, 1)
    with pytest.raises(NotEnabled):
        run.resume("b", 3)
    run.complete(0)


def test_an_answer_without_a_move_is_named() -> None:
    class Waits(TieredManager):
        moves = True

        def admit(self, *_: Any) -> Loading | Fetching | None:  # type: ignore[override]
            return Fetching()

    with pytest.raises(Divergence, match="a is told to wait for a fetch, and no move is in flight"):
        ManagerJudge(Waits(4, 2), SlotMemory).admit("a", [1], None, 1)


def test_nobody_is_told_to_wait_more_often_than_it_may() -> None:
    run = fetching(type("Made", (CachesOnDisk,), {"patience": 1}))
    with pytest.raises(Divergence, match=r"b is told 2 times to wait for a fetch, and may be told 1 time"):
        run.resume("b", 3)
    assert laws.fetch_ends("a", ["move 1"], 9, None) is None


def test_commands_and_laws_of_moves_are_for_targets_that_have_them() -> None:
    tiered, moving = (KVManagerModel(KVManagerModel.scopes[0], made) for made in (TieredManager, FetchingManager))
    assert {c.name for c in moving.table} - {c.name for c in tiered.table} == {"abort_fetching", "lose"}
    assert "fetch_ends" not in tiered.not_checked()
    assert laws.fetch_ends not in KVManagerModel.laws_in_play({"backed": 1})
    assert laws.fetch_ends in KVManagerModel.laws_in_play({"backed": 1, "fetch_ends": 1})
