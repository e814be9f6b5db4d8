"""vLLM's schedulers with states that are saved within a chunk: what is right holds, what is planted is found."""

from __future__ import annotations

from typing import Any

import pytest
from driving import walk

from kvlockstep.drivers.episode import missed_goals
from kvlockstep.models.kv_scheduler import KVSchedulerModel

REASON = "vllm is not on this machine: see --engine-path"
inside = pytest.importorskip("kvlockstep.impl.engines.vllm.saves.in_chunk", reason=REASON, exc_type=ImportError)


@pytest.mark.parametrize("make", [inside.make_state, inside.make_state_sparse, inside.make_async_state])
def test_what_holds_meets_every_goal(make: Any) -> None:
    outcome = walk(KVSchedulerModel, make, 5_000, seed=0)
    assert outcome.failure is None, outcome.failure
    assert not missed_goals(KVSchedulerModel, outcome.reach, outcome.unreachable)


class SavesNothing(inside.PrefillCheckpointScheduler):
    """The worker saves the state behind a chunk only."""

    def _step(self, g: int, item: Any) -> Any:
        step = super()._step(g, item)
        return step._replace(saves=list(step.saves)[-1:])


class SavesEarlier(inside.PrefillCheckpointScheduler):
    """The worker saves a state of one token fewer."""

    def _step(self, g: int, item: Any) -> Any:
        step = super()._step(g, item)
        return step._replace(saves=[(p - (p < item.start + item.n), block) for p, block in step.saves])


@pytest.mark.parametrize("make", [SavesNothing, SavesEarlier])
def test_a_state_that_is_not_saved_within_its_chunk_is_missed(make: Any) -> None:
    groups = inside.FULL, inside.STATE
    outcome = walk(KVSchedulerModel, lambda *sizes: make(*sizes, groups=groups), 20_000, seed=0)
    assert outcome.failure is not None
    assert outcome.failure.law == "state_soundness"
