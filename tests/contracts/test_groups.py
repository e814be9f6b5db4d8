"""kv_manager with groups: what must be readable, targets, laws, messages, and the example of docs/groups.md."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import ring_manager
from driving import explore, walk
from places import DOCS
from watched import watched

from kvlockstep.core.errors import UsageError
from kvlockstep.drivers.episode import missed_goals, run_ops
from kvlockstep.impl.kv_manager.grouped.manager import GroupedBlockManager
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.judge import ManagerJudge
from kvlockstep.models.kv_manager.scope import GROUP_SCOPES, KVScope
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_manager.groups.contract import Group, Step, needed
from kvlockstep.reference.kv_manager.groups.geometries import FullAndState, FullAndWindow, StatePool, TwoPools
from kvlockstep.reference.kv_manager.groups.manager import GroupedManager
from kvlockstep.runs.record import Recorder
from kvlockstep.runs.request_player import play
from kvlockstep.targets import resolve
from kvlockstep.targets.validation import misfits

STEP = Op("forward", accept=None, abort=[], reverse=None)
BLOCK = 4
KINDS = (
    Group("full", BLOCK),
    Group("window", BLOCK, reach=3),
    Group("window", BLOCK // 2, reach=BLOCK + 1),
    Group("chunked", BLOCK, reach=2 * BLOCK),
    Group("state", BLOCK),
    Group("state", 2 * BLOCK, pool="states"),
)


def admit(name: str, tokens: list[int], n: int = 0) -> Op:
    return Op("admit", request=name, tokens=tokens, extra_key=None, n=n or len(tokens))


@pytest.mark.parametrize(
    ("group", "positions"),
    [
        (Group("full", 4), range(9)),
        (Group("window", 4, reach=1), range(7, 9)),
        (Group("window", 4, reach=3), range(5, 9)),
        (Group("window", 4, reach=99), range(9)),
        (Group("chunked", 4, reach=4), range(4, 9)),
        (Group("chunked", 4, reach=7), range(7, 9)),
        (Group("state", 4), range(0)),
    ],
)
def test_what_a_forward_reads(group: Group, positions: range) -> None:
    assert needed(group, 7, 9) == positions


@pytest.mark.parametrize("seed", range(6))
def test_our_manager_finds_the_same_hits_as_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    groups = tuple(rng.sample(KINDS, rng.randint(1, 4)))
    pools = {"kv": 400, "states": 400}
    wide = {group.pool: pools[group.pool] for group in groups}
    both = GroupedManager(groups, wide), GroupedBlockManager(groups, wide)
    for i in range(60):
        name, tokens = f"r{i}", [rng.randint(1, 2) for _ in range(rng.randint(1, 20))]
        first = rng.choice((len(tokens), rng.randint(1, len(tokens))))
        cached = {manager.admit(name, tokens, None, first) for manager in both}
        assert len(cached) == 1
        n = min(first, len(tokens) - cached.pop())
        for manager in both:
            manager.copies()
            manager.launch()
            manager.commit(name, n)
            if i % 3:
                manager.finish(name)
        assert len({manager.avail(groups[0].pool) for manager in both}) == 1


def test_one_full_group_is_what_there_is_without_the_trait() -> None:
    class Declares(KVManager):
        groups = (Group("full", 2),)

    model = KVManagerModel(KVScope(4, 2, 2, 8), Declares)
    assert type(model.judge) is ManagerJudge
    ops = [admit("r0", [1, 2, 3]), STEP, Op("finish", request="r0")]
    plain = KVManagerModel(KVScope(4, 2, 2, 8), KVManager)
    assert [str(model.step(op)) for op in ops] == [str(plain.step(op)) for op in ops]
    assert model.fingerprint() == plain.fingerprint()
    assert {"state_soundness", "one_group"}.isdisjoint(law.id for law in KVManagerModel.laws_in_play(plain.evaluated))
    assert {"state_soundness", "one_group", "window_freed"}.isdisjoint(plain.not_checked())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"groups": "full"}, "the trait groups is 'full', not Groups of kinds full, window, chunked, rolling, state"),
        ({"groups": ("full",)}, "groups[0] is 'full', not a Group"),
        ({"groups": (Group("full", 2), Group("sliding", 2))}, "groups[1].kind is 'sliding', not one of full, window, "),
        ({"groups": (Group("window", 2),)}, "groups[0].reach is 0, not a number from 1 on"),
        ({"groups": (Group("window", 2, reach=True),)}, "groups[0].reach is True, not a number from 1 on"),
        ({"groups": (Group("full", 0),)}, "groups[0].block_size is 0, not a number from 1 on"),
        ({"groups": (Group("full", 2, pool=None),)}, "groups[0].pool is None, not a text"),  # type: ignore[arg-type]
        (
            {"groups": (Group("full", 2), Group("window", 2, 3, pool="other"))},
            "groups name several pools, 'kv', 'other': `pools` has to say how many blocks each has",
        ),
        (
            {"groups": (Group("full", 2), Group("window", 2, 3, pool="other")), "pools": {"kv": 4}},
            "groups name the pool 'other', which `pools` lacks",
        ),
        ({"groups": None, "pools": {"kv": 4}}, "pools are for groups, and there are none"),
    ],
)
def test_groups_that_cannot_be_are_one_message(wrong: dict[str, object], said: str) -> None:
    made = type("Wrong", (FullAndWindow,), {"__init__": lambda self, b, s: _declare(self, b, s, wrong)})
    assert any(text.startswith(said) for text in misfits("kv_manager", made))
    with pytest.raises(Divergence, match=re.escape(said)):
        KVManagerModel(KVScope(4, 2, 2, 8), made)


def _declare(manager: FullAndWindow, blocks: int, block_size: int, wrong: dict[str, object]) -> None:
    FullAndWindow.__init__(manager, blocks, block_size)
    vars(manager).update(wrong)


def test_a_target_with_groups_that_lacks_their_methods_is_named() -> None:
    class Lacks(KVManager):
        groups = (Group("full", 2), Group("state", 2))

    (missing, *odd) = misfits("kv_manager", Lacks)
    assert "held" in missing
    assert "state" in missing
    assert any("slots(rid) is called as slots(rid, group)" in text for text in odd)


def test_a_message_names_the_group_and_the_pool() -> None:
    trace = watched_run(resolve("kv_manager", "fault:kv-window-short").factory, [admit("r0", [1, 2, 3]), STEP])
    assert trace.message == (
        "1 slot after this step for 2 positions of group 1 (window of 3, blocks of 2), "
        "which the next forward of r0 reads: position 1 has none"
    )


def watched_run(factory, ops):  # type: ignore[no-untyped-def]
    found = watched(run_ops, KVManagerModel, factory, KVScope(4, 2, 2, 8), ops)
    assert found is not None
    return found


def test_a_pool_that_is_too_small_refuses_alone() -> None:
    model = KVManagerModel(KVScope(6, 2, 3, 12), TwoPools)
    assert model.judge.groups.pools == {"kv": 6, "window": 4}
    assert str(model.step(admit("r0", list(range(10))))) == "refused"
    assert model.goals_met["second_pool_full"] == 1


def test_a_refusal_that_needs_no_block_is_named() -> None:
    class Refuses(FullAndWindow):
        def reserve(self, rid: str, n: int) -> bool:
            return False

    found = watched_run(Refuses, [admit("r0", [1]), STEP, Op("decode", request="r0", token=1, drafts=[])])
    assert found.law == "admission_honesty"


def test_a_state_is_copied_on_a_fork_and_never_shared() -> None:
    model = KVManagerModel(KVScope(6, 2, 3, 12), FullAndState)
    for op in (admit("r0", [1, 2, 3]), STEP):
        model.step(op)
    assert str(model.step(Op("fork", request="r0", child="r1"))) == "copies 1 block"
    parent, child = (set(model.judge.adapter.held(name, 1)) for name in ("r0", "r1"))
    assert not parent & child


def test_the_picture_has_a_lane_for_each_group_and_a_row_for_each_pool() -> None:
    model = KVManagerModel(KVScope(6, 2, 3, 12), StatePool)
    for op in (admit("r0", [1, 2, 3, 4, 5]), STEP):
        model.step(op)
    picture = model.picture()
    tables = {table.title: table for table in picture.tables}
    assert tables["group 1 (window of 3, blocks of 2)"].rows == (("r0", "3 to 4", "- - 8 9 10 11"),)
    assert [row[0] for row in tables["pools"].rows] == ["kv", "states"]
    assert [row[-1] for row in tables["pools"].rows] == ["0 to 11", "12 to 14"]
    assert picture.unit == "block"


def test_a_manager_with_groups_is_neither_recorded_nor_played_with_request_traces(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a manager with groups cannot be recorded"):
        Recorder(FullAndWindow(4, 2), tmp_path / "trace.jsonl")
    with pytest.raises(UsageError, match="one table a request, and this one has groups"):
        play([], FullAndWindow(4, 2))


def test_the_example_of_the_page_holds_and_is_the_one_that_is_shown() -> None:
    outcome = walk(KVManagerModel, ring_manager.RingManager, 3_000, seed=0)
    assert outcome.failure is None
    assert not missed_goals(KVManagerModel, outcome.reach, outcome.unreachable)
    source = Path(ring_manager.__file__).read_text()
    assert len(source.splitlines()) <= 60
    assert f"<!-- ring_manager.py -->\n\n```python\n{source}```\n\n<!-- end -->" in (DOCS / "groups.md").read_text()


@pytest.mark.parametrize("scope", GROUP_SCOPES, ids=str)
@pytest.mark.parametrize("make", [FullAndWindow, TwoPools, FullAndState])
def test_small_scopes_of_groups_hold(make: type, scope: KVScope) -> None:
    assert scope in KVManagerModel.small_scopes_of(make)
    assert scope not in KVManagerModel.small_scopes_of(KVManager)
    outcome = watched(explore, KVManagerModel, make, scope, steps=3_000)
    assert outcome.failure is None
    assert outcome.states > 100


def test_a_manager_copies_no_checkpoints_by_itself() -> None:
    class Copies(FullAndState):
        def state(self, rid: str, group: int) -> Step:
            step = super().state(rid, group)
            return step._replace(checkpoints=list(step.saves))

    found = watched(run_ops, KVManagerModel, Copies, KVScope(8, 2, 4, 8), [admit("r0", [1, 2, 3]), STEP])
    assert found is not None
    assert found.law == "error_contract"
    assert "r0 has checkpoints" in found.message
