"""Loads of kv_scheduler that fail: in front of the batch that waits for them, in part, or with their request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from driving import walk

from kvlockstep.core.failure_page import failure_page
from kvlockstep.impl.variants.failing_loads import CountsWrittenBlocks, EndsOnFailure, LoadsInside
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import NotEnabled
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_scheduler.judge import SchedulerJudge
from kvlockstep.reference.kv.transfers import Transfer
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


def stored(kind: type[TieredScheduler]) -> SchedulerJudge:
    """Two blocks of a prompt are in the tier, and the pool has forgotten them; the prompt waits again as b."""
    run = SchedulerJudge(kind(4, 2, 8, 4), 8, 4)
    run.add("a", [1, 2, 3, 4, 5], None, 1, None)
    run.schedule([7])
    run.update()
    run.complete_all()
    run.poll()
    run.adapter._kv.evict_all()
    run.add("b", [1, 2, 3, 4, 5], None, 2, None)
    return run


@pytest.mark.parametrize("kind", [LoadsInside, CountsWrittenBlocks, EndsOnFailure])
def test_no_false_alarm(kind: Callable[..., Any]) -> None:
    outcome = walk(KVSchedulerModel, kind, 5_000, seed=5)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.reach["load_fails"] > 0


def test_an_own_load_ends_with_its_batch() -> None:
    run = stored(LoadsInside)
    assert str(run.schedule([8])) == "b[4:5]"
    assert not run.transfers or not run.transfers.unended
    run.update()
    assert run.live["b"].delivered == 1


def test_a_batch_whose_own_load_fails_is_void() -> None:
    run = stored(LoadsInside)
    run.schedule([8], lost=0)
    assert run.goals_met["own_load_fails"] == 1
    assert str(run.update()) == "done"
    assert (run.live["b"].delivered, run.live["b"].request.tokens) == (0, [1, 2, 3, 4, 5])
    assert str(run.schedule([8])) == "b[0:5]"
    run.update()
    assert run.live["b"].delivered == 1


def test_a_void_request_takes_no_drafts() -> None:
    run = stored(LoadsInside)
    run.schedule([8], lost=0)
    run.update()
    assert run.draftable() == []


def test_who_goes_on_behind_a_lost_load_is_named() -> None:
    kind = type("Keeps", (LoadsInside,), {"_rewind": lambda self, load: None})
    run = stored(kind)
    run.schedule([8], lost=0)
    run.update()
    with pytest.raises(Divergence) as wrong:
        run.schedule([8])
    assert wrong.value.law == "continuity"


def test_a_partial_load_keeps_what_was_written() -> None:
    run = stored(CountsWrittenBlocks)
    run.schedule([8])
    run.update()
    run.tear(0, 1)
    run.poll()
    assert str(run.schedule([8])) == "b[2:5]"


def test_a_request_may_end_with_its_load() -> None:
    run = stored(EndsOnFailure)
    run.schedule([8])
    run.update()
    run.fail(0)
    run.poll()
    assert not run.live


class InSteps(TieredScheduler):
    """Submits a store in the step after the one that decided it."""

    in_steps = True

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._due: list[Transfer] = []

    def transfers(self) -> Sequence[Transfer]:
        due, self._due = self._due, []
        return due

    def _step(self) -> None:
        self._due += self._submitted
        self._submitted = []

    def schedule(self) -> Batch:
        self._step()
        batch = super().schedule()
        self._due += [transfer for transfer in self._submitted if transfer.kind == "load"]
        self._submitted = [transfer for transfer in self._submitted if transfer.kind != "load"]
        return batch

    def poll(self) -> None:
        self._step()
        super().poll()


def test_what_is_decided_in_a_step_may_be_submitted_in_the_next() -> None:
    outcome = walk(KVSchedulerModel, InSteps, 5_000, seed=5)
    assert outcome.failure is None, failure_page(outcome.failure)
    run = SchedulerJudge(InSteps(4, 2, 8, 4), 8, 4)
    run.add("a", [1, 2, 3], None, 1, None)
    run.schedule([5])
    with pytest.raises(NotEnabled):
        run.poll()
    run.update()
    assert run.transfers is not None
    assert (run.transfers.moving, run.transfers.quiet) == ({}, False)
    run.reset()
    assert run.transfers.quiet
