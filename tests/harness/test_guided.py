"""The guided driver: what an episode depends on, where it gives up, and what that is worth in steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from driving import random_walk

from kvlockstep.bench import guided as bench_guided
from kvlockstep.campaign.playing import shard_of
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers import SHARD_DRIVERS, guided
from kvlockstep.drivers.episode import Outcome
from kvlockstep.drivers.guided import LONGEST_PAUSE, PATIENCE, Guide, Patience
from kvlockstep.drivers.random_walk import picker, run_episode
from kvlockstep.models.core.model import Goal, Model, Scope
from kvlockstep.models.core.op import NotEnabled, Op, command
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.targets import resolve

WATCHDOG = Watchdog(30.0)
GUIDED = SHARD_DRIVERS["guided"]
DEPTH = 9


@pytest.fixture(autouse=True)
def watching():
    with WATCHDOG.watching():
        yield


@dataclass(frozen=True)
class LockScope(Scope):
    depth: int = DEPTH


class Lock(Model[LockScope]):
    """A row of doors: each step opens the next one or, as likely, falls into a pit that nothing leads out of."""

    contract = "lock"
    laws = ()
    goals = (Goal("open", "the last door is open"),)
    scope_type = LockScope
    scopes = (LockScope(),)
    small_scopes = ()

    def __init__(self, scope, factory):
        super().__init__(scope, factory)
        self.depth = 0
        self.fallen = False

    @command(1)
    def turn(self, pick):
        """Left or right."""
        return Op("turn", left=pick((True, False)))

    def step(self, op):
        self.fallen |= not op.args["left"]
        self.depth += not self.fallen
        if self.depth == self.scope.depth:
            self.goals_met["open"] += 1

    def redo(self, op):
        self.step(op)

    def fingerprint(self):
        return self.fallen, self.depth


def noting(model_type, ops):
    """The model, which keeps what its steps are."""

    class Noting(model_type):
        def step(self, op):
            ops.append(op)
            return super().step(op)

    return Noting


def played(model_type, factory, seed, episodes):
    """The operations of some episodes of a guide."""
    ops: list[Op] = []
    guide = Guide(noting(model_type, ops), seed=seed)
    for episode in episodes:
        guide.run_episode(factory, episode, WATCHDOG, Outcome("guided"))
    return ops


@pytest.mark.parametrize("contract", MODELS)
def test_a_shard_depends_on_its_seed_and_its_episodes_only(contract):
    model_type, factory = model_of(contract), resolve(contract, "reference").factory
    first = played(model_type, factory, 3, range(64, 67))
    played(model_type, factory, 8, range(2))
    assert played(model_type, factory, 3, range(64, 67)) == first
    for seed, episode in ((4, 64), (3, 128)):
        other = played(model_type, factory, seed, [episode])
        assert other != first[: len(other)]


def test_a_campaign_plays_the_same_shard():
    model_type, factory = model_of("block_pool"), resolve("block_pool", "reference").factory
    guide = Guide(model_type, seed=3)
    outcomes = [Outcome("guided") for _ in range(10)]
    for episode, outcome in zip(range(64, 74), outcomes, strict=True):
        guide.run_episode(factory, episode, WATCHDOG, outcome)
    shard = list(GUIDED.play(shard_of(GUIDED, model_type, factory, 3, range(64, 74), WATCHDOG)))
    assert [o.steps for o in shard] == [o.steps for o in outcomes]
    assert [o.reach for o in shard] == [o.reach for o in outcomes]


def test_the_same_operations_lead_to_the_same_fingerprints():
    model_type, factory = model_of("radix_cache"), resolve("radix_cache", "reference").factory
    ops = played(model_type, factory, 1, [0])
    scope = picker(1, 0)(model_type.scopes)

    def sketches():
        model = model_type(scope, factory)
        for op in ops:
            try:
                model.step(op)
            except NotEnabled:
                continue
            yield hash((model.scope, model.sketch()))

    first = list(sketches())
    assert first == list(sketches())
    assert len(set(first)) > 1


def test_a_guided_episode_is_the_random_one_but_for_its_end():
    model_type, factory = model_of("slot_pool"), resolve("slot_pool", "reference").factory
    cut = 0
    plain: list[Op] = []
    short: list[Op] = []
    guide = Guide(noting(model_type, short), seed=2)
    for episode in range(20):
        plain.clear()
        short.clear()
        run_episode(noting(model_type, plain), factory, 2, episode, WATCHDOG, Outcome("random"))
        guide.run_episode(factory, episode, WATCHDOG, Outcome("guided"))
        assert short == plain[: len(short)]
        cut += len(short) < len(plain)
    assert 0 < cut < 20


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(guided, "MOST_STATES", 20)
    model_type, factory = model_of("kv_manager"), resolve("kv_manager", "reference").factory
    guide = Guide(model_type, seed=0)
    for episode in range(8):
        guide.run_episode(factory, episode, WATCHDOG, Outcome("guided"))
    assert len(guide.met) == 20


def test_an_episode_ends_after_so_many_looks_at_known_states():
    model = Lock(LockScope(), None)
    patience = Patience({hash((model.scope, model.sketch()))})
    assert [patience.stale(model) for _ in range(PATIENCE)] == [False] * (PATIENCE - 1) + [True]


def test_looks_become_rare_while_everything_is_new():
    model, looks = Lock(LockScope(), None), Counter()
    patience = Patience(set())
    model.sketch = lambda: looks.update(["looks"]) or looks["looks"]  # every state is new
    assert not any(patience.stale(model) for _ in range(400))
    assert 400 / (LONGEST_PAUSE + 1) <= looks["looks"] <= 400 / (LONGEST_PAUSE + 1) + 5


def test_a_new_state_renews_patience():
    model = Lock(LockScope(), None)
    patience = Patience({hash((model.scope, model.sketch()))})
    for _ in range(PATIENCE - 1):
        assert not patience.stale(model)
    model.depth += 1
    assert not patience.stale(model)
    model.depth -= 1
    assert [patience.stale(model) for _ in range(1 + PATIENCE)] == [False] * PATIENCE + [True]


def test_the_bench_compares_all_variants_with_uniform(monkeypatch):
    monkeypatch.setattr(bench_guided, "HARD_STEPS", 10)
    rows = list(bench_guided.bench_guided(["slot_pool"], steps=300, seeds=2))
    assert [row.variant for row in rows] == list(bench_guided.VARIANTS)
    assert {row.tried for row in rows} == {2 * rows[0].hard}
    assert rows[0].hard
    assert rows[0].ratio == 1.0
    assert rows[0].looking == 0.0 < rows[1].looking
    for row in rows:
        assert row.spent == sum(row.runs)
        assert 0 < row.found <= row.tried
        assert 0 < row.states < 1_000_000


def test_guided_gets_behind_doors_that_uniform_does_not():
    budget = 6_000
    uniform = random_walk(Lock, None, seed=0, watchdog=WATCHDOG, steps=budget)
    outcome, guide, episode = Outcome("guided"), Guide(Lock, seed=0), 0
    while outcome.steps < budget:
        guide.run_episode(None, episode, WATCHDOG, outcome)
        episode += 1
    assert not uniform.reach["open"]
    assert outcome.reach["open"]
    assert episode > 5 * uniform.states
