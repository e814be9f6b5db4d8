"""A peer under a kv_scheduler with groups: what is offered of each group, what is owed, and what the judge names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from driving import explore, walk
from watched import watched

from kvlockstep.drivers.episode import missed_goals
from kvlockstep.impl.variants.group_peers import SendsStatesAtEnd, SendsWindowAtEnd, TakesAll
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import NotEnabled
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_scheduler.groups.judge import GroupedSchedulerJudge
from kvlockstep.models.kv_scheduler.model import GROUP_SCOPES, SchedulerScope
from kvlockstep.reference.kv_manager.groups.contract import Group, owed
from kvlockstep.reference.kv_scheduler.peered_groups import PeeredState, PeeredStates, PeeredWindow, PeeredWindows


def judge(make: Callable[..., Any] = PeeredStates, blocks: int = 6) -> GroupedSchedulerJudge:
    return GroupedSchedulerJudge(make(blocks, 2, 12, 4), 12, 4)


def loading(run: GroupedSchedulerJudge) -> GroupedSchedulerJudge:
    """A request waits for a load of what was offered."""
    run.add("a", [1, 2, 3, 4, 5], None, 1, None)
    assert str(run.schedule([9])) == "nothing"
    run.update()
    return run


@pytest.mark.parametrize(
    ("group", "computed", "numbers"),
    [
        (Group("full", 4), 11, range(2)),
        (Group("full", 4), 12, range(3)),
        (Group("window", 4, reach=3), 12, range(2, 3)),
        (Group("window", 4, reach=6), 12, range(1, 3)),
        (Group("window", 4, reach=3), 9, range(1, 2)),
        (Group("window", 4, reach=1), 12, range(3, 3)),
        (Group("chunked", 4, reach=8), 12, range(2, 3)),
        (Group("chunked", 4, reach=8), 16, range(4, 4)),
        (Group("state", 4), 12, range(2, 3)),
        (Group("state", 4), 11, range(0)),
        (Group("state", 4), 0, range(0)),
    ],
    ids=str,
)
def test_what_is_owed_is_what_the_next_token_reads(group: Group, computed: int, numbers: range) -> None:
    assert owed(group, computed) == numbers


@pytest.mark.parametrize("scope", GROUP_SCOPES, ids=str)
@pytest.mark.parametrize("make", [PeeredWindow, PeeredState])
def test_small_scopes_hold(make: Callable[..., Any], scope: SchedulerScope) -> None:
    outcome = watched(explore, KVSchedulerModel, make, scope, steps=500)
    assert outcome.failure is None, outcome.failure
    assert outcome.reach["store"] > 0


@pytest.mark.parametrize("make", [PeeredWindows, SendsStatesAtEnd])
def test_right_ones_hold_and_meet_their_goals(make: Callable[..., Any]) -> None:
    outcome = walk(KVSchedulerModel, make, 3_000, seed=0)
    assert outcome.failure is None, outcome.failure
    missed = missed_goals(KVSchedulerModel, outcome.reach, outcome.unreachable)
    assert not {"offered", "lost", "sent", "sent_behind_window", "loaded_groups"} & set(missed)


def test_an_offer_is_taken_as_far_as_a_hit_needs_it() -> None:
    """The window of 3 reaches into the second block, the state stands behind 4 tokens."""
    run = judge()
    assert str(run.offer([1, 2, 3, 4, 5], None)) == "units 0,1; -,2; 3"
    loading(run)
    assert str(run.complete(0)) == "load 0 landed"
    run.poll()
    assert str(run.schedule([9])) == "a[4:5]"
    assert run.goals_met["offered"] == 1


def test_an_offer_may_be_taken_whole() -> None:
    run = judge(TakesAll)
    assert str(run.offer([1, 2, 3, 4, 5], None)) == "units 0,1; 2,3; 4"
    assert str(loading(run).complete(0)) == "load 0 landed"


def test_an_offer_has_a_full_block_of_some_group() -> None:
    with pytest.raises(NotEnabled):
        judge().offer([1], None)


@pytest.mark.parametrize("unit", [1, 2, 3])
def test_a_load_ends_at_the_unit_that_is_lost_of_any_group(unit: int) -> None:
    run = judge()
    run.offer([1, 2, 3, 4, 5], None)
    run.lose("host", unit)
    loading(run)
    assert str(run.complete_all()) == "load 0 failed"
    run.poll()
    assert str(run.schedule([9])).startswith("a[0:")


@pytest.mark.parametrize(
    "answer", [[0, 1], [[0, 1], [None, 2]], [[0, 1], [None], [3]], [[0, 1], [None, "x"], [3]], None]
)
def test_an_answer_to_an_offer_that_the_contract_does_not_know(answer: Any) -> None:
    class Answers(PeeredStates):
        def offer(self, tokens: list[int], extra_key: int | None) -> Sequence[Sequence[int | None]]:
            found: Sequence[Sequence[int | None]] = answer
            return found

    with pytest.raises(Divergence, match=r"offer.* each group"):
        judge(Answers).offer([1, 2, 3, 4], None)


def sends(*groups: int) -> type:
    """A scheduler that sends the blocks of these groups only."""

    class Sends(SendsStatesAtEnd):
        def _sent(self, g: int, job: Any) -> Any:
            return super()._sent(g, job) if g in groups else ()

    return Sends


def ended(make: Callable[..., Any], tokens: list[int]) -> GroupedSchedulerJudge:
    run = judge(make)
    run.add("a", tokens, None, 1, None)
    run.schedule([9])
    assert str(run.update()) == "ended a"
    return run


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ((1, 2), r"a has ended, and the KV of its positions 0 to 2 in group 0 \(full, blocks of 2\) was never stored"),
        ((0, 2), r"a has ended, and the KV of its positions 2 to 4 in group 1 \(window of 3, blocks of 2\) was never"),
        ((0, 1), r"a has ended, and the KV of its positions 0 to 4 in group 2 \(state, blocks of 4\) was never stored"),
    ],
)
def test_every_group_is_owed(groups: tuple[int, ...], said: str) -> None:
    with pytest.raises(Divergence, match=said):
        ended(sends(*groups), [1, 2, 3, 4]).poll()


def test_a_state_that_is_not_on_the_grid_is_not_owed() -> None:
    ended(sends(0, 1), [1, 2, 3, 4, 5]).poll()


def test_what_a_window_has_left_is_not_owed() -> None:
    run = ended(SendsWindowAtEnd, [1, 2, 3, 4, 5, 6])
    run.poll()
    stored = [len(moving.sources) for moving in run.transfers.moving.values()] if run.transfers else []
    assert sum(stored) == 3 + 1
    assert run.goals_met["sent_behind_window"] == 1


def test_drafts_behind_the_end_may_take_the_window_further() -> None:
    """The end comes with the first draft, two more are right: what they let slide is not owed, nor is the state."""
    run = judge(SendsStatesAtEnd)
    job_tokens = [1, 2, 3, 4]
    run.add("a", job_tokens, None, 8, None)
    parts = run.owed_by(run.live["a"], job_tokens, 0)
    assert [len(part.blocks) for part in parts] == [2, 1, 1]
    parts = run.owed_by(run.live["a"], job_tokens, 3)
    assert [len(part.blocks) for part in parts] == [2, 0, 0]
