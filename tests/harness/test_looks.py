"""Random episodes that look at everything only now and then: they play the same, and find the same."""

from __future__ import annotations

from typing import Any

import pytest

from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Outcome
from kvlockstep.drivers.random_walk import picker, run_episode, walk
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.reference.kv_manager.manager import KVManager
from kvlockstep.targets.registry import FAULT_PREFIX, resolve

WATCHDOG = Watchdog(5.0)
SCOPE = KVScope(4, 2, 3, 10)
EPISODES = 12


class Noted(KVManagerModel):
    """Notes the operations."""

    ops: list[Any]

    def step(self, op: Any) -> Any:
        answer = super().step(op)
        self.ops.append(op)
        return answer


def played(looks: tuple[int, ...], factory: Any = KVManager) -> tuple[list[Any], Outcome]:
    class Fresh(Noted):
        ops: list[Any] = []

    outcome = Outcome("random")
    for episode in range(EPISODES):
        assert run_episode(Fresh, factory, 3, episode, WATCHDOG, outcome, looks) is None
    return Fresh.ops, outcome


def found(fault: str, every: int) -> Trace:
    factory = resolve("kv_manager", FAULT_PREFIX + fault).factory
    outcome = Outcome("random")
    for episode in range(2_000):
        pick = picker(5, episode)
        trace = walk(KVManagerModel, factory, SCOPE, 60, pick, WATCHDOG, outcome, every=every)
        if trace is not None:
            return trace
    raise AssertionError(f"{fault} was not found")


def test_looks_do_not_change_what_is_played():
    every, all_looked = played((1,))
    seldom, outcome = played((8,))
    assert every == seldom
    assert outcome.unsteady == 0
    for law in ("accounting", "no_double_free"):
        assert 0 < outcome.evaluated[law] < all_looked.evaluated[law] / 2


def test_the_end_of_an_episode_is_looked_at():
    ended = 0
    for episode in range(40):
        looks = []
        for every in (1, 10**9):
            Noted.ops, outcome = [], Outcome("random")
            assert walk(Noted, KVManager, SCOPE, 2, picker(0, episode), WATCHDOG, outcome, every=every) is None
            looks.append(outcome.evaluated["accounting"])
        if [op.name for op in Noted.ops] == ["admit", "forward"]:
            # One at the new manager, one behind the forward.
            assert looks == [2, 2]
            ended += 1
    assert ended


@pytest.mark.parametrize("fault", ["kv-preempt-leaks", "kv-fork-uncounted", "kv-evicts-held", "kv-abort-unwritten"])
def test_a_violation_that_shows_late_has_the_trace_that_every_look_gives(fault):
    assert found(fault, 10**9) == found(fault, 1)


class WrongUntilAsked(KVManager):
    """Refuses what fits until somebody asks what is available."""

    asked = True

    def avail(self) -> int:
        self.asked = True
        return super().avail()

    def finish(self, rid: str) -> None:
        super().finish(rid)
        self.asked = False

    def admit(self, rid: str, *args: Any) -> Any:
        return super().admit(rid, *args) if self.asked else None


def test_a_violation_that_looks_prevent_is_no_finding():
    outcome = Outcome("random")
    for episode in range(30):
        assert walk(KVManagerModel, WrongUntilAsked, SCOPE, 60, picker(1, episode), WATCHDOG, outcome, every=50) is None
    assert outcome.unsteady > 0
