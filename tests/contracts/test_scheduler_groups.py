"""kv_scheduler with groups: targets, variants, what the judge asks of items, windows, states and pools, messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from driving import explore
from watched import watched

from kvlockstep.core.trace import Trace
from kvlockstep.drivers.episode import run_ops
from kvlockstep.impl.kv_scheduler.checkpointed import CheckpointedStates
from kvlockstep.impl.kv_scheduler.committed import CommittedStates
from kvlockstep.impl.kv_scheduler.flying_states import OverlapStates
from kvlockstep.impl.kv_scheduler.grouped import OverlapWindow
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_scheduler.judge import SchedulerJudge
from kvlockstep.models.kv_scheduler.model import GROUP_SCOPES, SchedulerScope
from kvlockstep.reference.kv_manager.groups.contract import Group, Step
from kvlockstep.reference.kv_scheduler import KVScheduler
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.grouped import FullAndWindow, StatePool, TwoPools
from kvlockstep.reference.kv_scheduler.scheduler import Job
from kvlockstep.show.finding_page import finding_page
from kvlockstep.targets import resolve
from kvlockstep.targets.validation import misfits

SCOPE = SchedulerScope(8, 2, budget=8, running=4, live=4, outputs=4)


def add(name: str, tokens: list[int], outputs: int = 4) -> Op:
    return Op("add", request=name, tokens=tokens, extra_key=None, max_tokens=outputs, priority=None)


SCHEDULE, UPDATE = Op("schedule", tokens=[1]), Op("update")


@pytest.mark.parametrize("scope", GROUP_SCOPES, ids=str)
@pytest.mark.parametrize(
    "make",
    [FullAndWindow, TwoPools, StatePool, OverlapWindow, OverlapStates, CheckpointedStates, CommittedStates],
)
def test_small_scopes_hold(make: Callable[..., Any], scope: SchedulerScope) -> None:
    outcome = watched(explore, KVSchedulerModel, make, scope, steps=2_000)
    assert outcome.failure is None
    assert outcome.states > 50


def test_small_scopes_of_groups_are_those_of_targets_with_groups() -> None:
    assert KVSchedulerModel.small_scopes_of(KVScheduler) == KVSchedulerModel.small_scopes
    assert KVSchedulerModel.small_scopes_of(StatePool) == (*GROUP_SCOPES, *KVSchedulerModel.small_scopes)


def test_one_full_group_is_what_there_is_without_the_trait() -> None:
    class Declares(KVScheduler):
        groups = (Group("full", 2),)

    ops = [add("r0", [1, 2, 3]), SCHEDULE, UPDATE, SCHEDULE, UPDATE]
    model, plain = KVSchedulerModel(SCOPE, Declares), KVSchedulerModel(SCOPE, KVScheduler)
    assert type(model.judge) is SchedulerJudge
    assert [str(model.step(op)) for op in ops] == [str(plain.step(op)) for op in ops]
    assert model.fingerprint() == plain.fingerprint()
    of_groups = {"state_soundness", "one_group", "window_freed"}
    assert of_groups.isdisjoint(law.id for law in KVSchedulerModel.laws_in_play(plain.evaluated))
    assert of_groups.isdisjoint(plain.not_checked())
    assert {goal.id for goal in KVSchedulerModel.goals if goal.when == "groups"} <= plain.unreachable()


def test_a_state_that_stays_in_its_block_need_not_move() -> None:
    class InPlace(StatePool):
        states_in_place = True

    assert "state_moves" not in KVSchedulerModel(SCOPE, StatePool).unreachable()
    assert "state_moves" in KVSchedulerModel(SCOPE, InPlace).unreachable()


def test_a_state_that_is_said_to_stay_and_moves_is_named() -> None:
    class Moves(StatePool):
        states_in_place = True

    model = KVSchedulerModel(SCOPE, Moves)
    for op in (add("r0", [1, 2, 3, 4], outputs=2), SCHEDULE, UPDATE):
        model.step(op)
    with pytest.raises(Divergence, match="r0 reads its state from block 0 and saves it elsewhere") as caught:
        model.step(SCHEDULE)
    assert caught.value.law == "error_contract"


def test_a_target_with_groups_that_lacks_their_methods_is_named() -> None:
    class Lacks(KVScheduler):
        groups = (Group("full", 2), Group("window", 2, reach=3))

    (missing, *odd) = misfits("kv_scheduler", Lacks)
    assert "held" in missing
    assert any("slots(rid) is called as slots(rid, group)" in text for text in odd)


def test_pools_of_their_own_are_asked_for_by_name() -> None:
    class Lacks(TwoPools):
        def avail(self) -> int:  # type: ignore[override]
            return 0

    assert any("avail() is called as avail(pool)" in text for text in misfits("kv_scheduler", Lacks))


def test_a_target_with_groups_says_what_fits_alone() -> None:
    def made(*sizes: int) -> FullAndWindow:
        scheduler = FullAndWindow(*sizes)
        scheduler.max_length = None  # type: ignore[assignment]
        return scheduler

    with pytest.raises(Divergence, match="with groups, max_length has to say how many tokens a request may have"):
        KVSchedulerModel(SCOPE, made)


def broken(make: type, ops: list[Op], scope: SchedulerScope = SCOPE) -> str:
    found = watched(run_ops, KVSchedulerModel, make, scope, ops)
    assert found is not None
    return f"{found.law}: {found.message}"


def test_an_item_names_every_group() -> None:
    class TellsOne(FullAndWindow):
        def schedule(self) -> Batch:
            batch = super().schedule()
            return batch._replace(items=[item._replace(groups=item.groups[:1]) for item in batch.items])

    said = broken(TellsOne, [add("r0", [1, 2, 3]), SCHEDULE])
    assert said == "error_contract: an item of r0 has tables for 1 of 2 groups"


def test_a_message_names_the_request_and_the_group() -> None:
    class LacksOne(FullAndWindow):
        def _table(self, job: Job, g: int, stop: int) -> list[int | None]:
            table = super()._table(job, g, stop)
            return [*table[:-2], None, table[-1]] if g else table

    said = broken(LacksOne, [add("r0", [1, 2, 3]), SCHEDULE])
    assert said == (
        "coverage: r0 has 2 slots for 3 positions of group 1 (window of 3, blocks of 2), "
        "which its batch reads or writes: position 1 has none"
    )


def test_what_the_window_has_left_may_be_anything_in_the_workers_table() -> None:
    class TellsNonsense(FullAndWindow):
        def _table(self, job: Job, g: int, stop: int) -> list[int | None]:
            table = super()._table(job, g, stop)
            return [99 if slot is None else slot for slot in table] if g else table

    ops = [add("r0", [1, 2, 3, 4, 5, 6]), SCHEDULE, UPDATE, SCHEDULE, UPDATE]
    assert watched(run_ops, KVSchedulerModel, TellsNonsense, SCOPE, ops) is None


def test_the_worker_has_the_slots_of_the_scheduler_in_every_group() -> None:
    class TellsOther(FullAndWindow):
        def _table(self, job: Job, g: int, stop: int) -> list[int | None]:
            table = super()._table(job, g, stop)
            return [*table[:-1], 31] if g else table

    said = broken(TellsOther, [add("r0", [1, 2, 3]), SCHEDULE])
    assert said.startswith("held_tables: r0 in group 1 has position 2 in slot 31 for the worker, but in ")


def test_a_window_may_keep_its_blocks_while_a_batch_is_in_flight() -> None:
    model = KVSchedulerModel(SCOPE, FullAndWindow)
    model.step(add("r0", [1, 2, 3, 4, 5, 6]))
    model.step(SCHEDULE)
    held = set(model.judge.adapter.held("r0", 1))
    model.step(UPDATE)
    assert set(model.judge.adapter.held("r0", 1)) < held
    assert model.goals_met["window_slides"] == 1


def test_rejected_drafts_take_the_window_back() -> None:
    """The next forward reads from behind the last right draft on, wherever the plan was."""
    ops = [
        add("r0", [1, 2, 3, 4], 8),
        Op("schedule", tokens=[1], drafts=[2, 2, 2]),
        Op("schedule", tokens=[1], accept=0, drafts=[2, 2, 2]),
        Op("schedule", tokens=[1], accept=0, drafts=[2, 2, 2]),
    ]
    ops[3:3] = [UPDATE]
    assert watched(run_ops, KVSchedulerModel, OverlapWindow, SCOPE, ops) is None
    said = broken(resolve("kv_scheduler", "fault:sched-window-slides-by-plan").factory, ops)
    assert said.startswith("coverage: r0 has ")
    assert "of group 1 (window of 3, blocks of 2)" in said


def test_states_are_read_before_any_is_saved() -> None:
    class SavesOver(StatePool):
        """Two requests save to one block."""

        def _state(self, job: Job, g: int) -> Step:
            step = super()._state(job, g)
            return step._replace(saves=[(position, 0) for position, _ in step.saves])

    said = broken(SavesOver, [add("r0", [1, 2, 3]), add("r1", [2, 2, 3]), SCHEDULE])
    assert said.startswith("no_aliasing: group 2 (state, blocks of 4) slot 0 of block 0 serves the state of r0 and ")


def drafted(*, accept: int) -> list[Op]:
    """One request whose second batch may end at 4, the first end of the grid, or at 5, 6 or 7."""
    drafts = Op("draft", request="r0", tokens=[2, 2, 2])
    return [add("r0", [1, 2, 3], 8), SCHEDULE, UPDATE, drafts, Op("schedule", tokens=[1], accept=accept)]


def state_at(model: KVSchedulerModel, end: int) -> tuple[str, str]:
    """What stands in the first checkpoint of r0, and in the block of the state behind so many tokens."""
    judge = model.judge
    step = judge.adapter._launched[0].groups[2]
    blocks = next(iter(step.checkpoints))[1], dict(step.saves)[end]
    first, second = (judge.kv.shown("states", block) for block in blocks)
    return first, second


@pytest.mark.parametrize("accept", [0, 3])
def test_a_checkpoint_gets_the_state_that_the_device_has_come_to(accept: int) -> None:
    model = KVSchedulerModel(SCOPE, CheckpointedStates)
    for op in drafted(accept=accept):
        model.step(op)
    checkpoint, state = state_at(model, 4)
    assert checkpoint == state
    assert "the state behind [1, 2, 3, 1]" in state


def test_of_several_checkpoints_the_last_one_that_was_reached_gets_its_state() -> None:
    class Several(CheckpointedStates):
        def _state(self, job: Job, g: int) -> Step:
            step = super()._state(job, g)
            blocks = [block for _, block in step.checkpoints]
            return step._replace(checkpoints=[(end, block) for block in blocks for end in (4, 6, 7)])

    model = KVSchedulerModel(SCOPE, Several)
    for op in drafted(accept=2):
        model.step(op)
    checkpoint, state = state_at(model, 6)
    assert checkpoint == state


def test_a_checkpoint_that_is_not_reached_is_left_alone() -> None:
    class Later(CheckpointedStates):
        def _state(self, job: Job, g: int) -> Step:
            step = super()._state(job, g)
            return step._replace(checkpoints=[(6, block) for _, block in step.checkpoints])

    model = KVSchedulerModel(SCOPE, Later)
    for op in drafted(accept=1):
        model.step(op)
    checkpoint, state = state_at(model, 6)
    assert checkpoint != state


@pytest.mark.parametrize("accept", [0, 1, 2, 3])
def test_the_state_of_a_device_that_keeps_those_behind_drafts_is_committed_when_it_knows_them(accept: int) -> None:
    model = KVSchedulerModel(SCOPE, CommittedStates)
    for op in drafted(accept=accept):
        model.step(op)
    judge = model.judge
    (own,) = {block for _, block in judge.adapter._launched[0].groups[2].commits}
    assert judge.kv.shown("states", own) == f"the state behind {[1, 2, 3, 1, 2, 2, 2][: 4 + accept]} in group 2"


def test_a_checkpoint_may_be_of_a_state_that_is_committed() -> None:
    model = KVSchedulerModel(SCOPE, CommittedStates)
    for op in drafted(accept=1):
        model.step(op)
    judge = model.judge
    ((end, checkpoint),) = judge.adapter._launched[0].groups[2].checkpoints
    assert (end, judge.kv.shown("states", checkpoint)) == (4, "the state behind [1, 2, 3, 1] in group 2")


def test_a_position_without_a_state_is_neither_saved_nor_committed() -> None:
    class CommitsFewer(CommittedStates):
        def _state(self, job: Job, g: int) -> Step:
            step = super()._state(job, g)
            return step._replace(commits=list(step.commits)[:-1])

    said = broken(CommitsFewer, [add("r0", [1, 2, 3]), SCHEDULE])
    assert said.endswith("group 2 (state, blocks of 4): no state is saved behind 3 tokens")


def test_two_requests_do_not_commit_to_one_block() -> None:
    class OneForAll(CommittedStates):
        def _state(self, job: Job, g: int) -> Step:
            step = super()._state(job, g)
            return step._replace(commits=[(position, 0) for position, _ in step.commits])

    said = broken(OneForAll, [add("r0", [1, 2, 3]), add("r1", [2, 2, 3]), SCHEDULE])
    assert said.startswith("no_aliasing: ")


def test_a_checkpoint_is_one_of_the_saved_states() -> None:
    class SavesNone(CheckpointedStates):
        def _state(self, job: Job, g: int) -> Step:
            return super()._state(job, g)._replace(checkpoints=[(9, 0)])

    said = broken(SavesNone, [add("r0", [1, 2, 3]), SCHEDULE])
    assert said == "error_contract: r0 copies a state to a checkpoint that its batch does not save: [(9, 0)]"


def test_the_picture_has_a_lane_for_each_group_and_a_row_for_each_pool() -> None:
    model = KVSchedulerModel(SCOPE, StatePool)
    for op in (add("r0", [1, 2, 3, 4, 5]), SCHEDULE):
        model.step(op)
    picture = model.picture()
    tables = {table.title: table for table in picture.tables}
    assert tables["group 1 (window of 3, blocks of 2)"].rows[0][:2] == ("r0", "3 to 4")
    assert tables["group 2 (state, blocks of 4)"].rows[0][0] == "r0"
    assert [row[0] for row in tables["pools"].rows] == ["kv", "states"]
    assert tables["batches in flight"].rows == (("0", "{'r0': 1}"),)
    assert picture.unit == "block"


def test_the_page_has_a_lane_for_each_group_and_a_row_for_each_pool() -> None:
    ops = (add("r0", [1, 2, 3, 4, 5]), SCHEDULE, UPDATE, SCHEDULE)
    page = finding_page(Trace("kv_scheduler", SCOPE, ops), resolve("kv_scheduler", "groups"))
    cells = [" ".join(re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)) for row in re.findall(r"<tr.*?</tr>", page, re.S)]
    model = KVSchedulerModel(SCOPE, StatePool)
    for op in ops:
        model.step(op)
    lanes = {table.title: table for table in model.picture().tables}
    window, state = "group 1 (window of 3, blocks of 2)", "group 2 (state, blocks of 4)"
    assert lanes[window].rows == (("r0", "4 to 5", "- - 8 9 10 11"),)
    for title in ("group 0 (full, blocks of 2)", window, state, "pools"):
        assert title in page
        for row in lanes[title].rows:
            assert " ".join(row) in cells
