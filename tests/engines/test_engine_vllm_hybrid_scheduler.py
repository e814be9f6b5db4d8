"""vLLM's Scheduler over its hybrid manager under kv_scheduler: what is right holds, what is planted is found."""

from __future__ import annotations

from typing import Any

import pytest
from driving import walk

from kvlockstep.drivers.episode import missed_goals
from kvlockstep.models.kv_scheduler import KVSchedulerModel

REASON = "vllm is not on this machine: see --engine-path"
hybrid = pytest.importorskip("kvlockstep.impl.engines.vllm.hybrid_scheduler", reason=REASON, exc_type=ImportError)

MAKES = ("make_window", "make_two_sizes", "make_async_ngram_window", "make_state_window", "make_state_fine")


@pytest.mark.parametrize("make", MAKES)
def test_the_engine_holds_and_meets_every_goal(make: str) -> None:
    outcome = walk(KVSchedulerModel, getattr(hybrid, make), 4_000, seed=0)
    assert outcome.failure is None, outcome.failure
    assert not missed_goals(KVSchedulerModel, outcome.reach, outcome.unreachable)


def test_the_pool_is_what_the_engine_asks_for_at_its_start() -> None:
    """Full attention takes the blocks of the longest request, a state two, a window its reach and a batch."""
    assert hybrid.make_state(8, 4, 16, 4).total == (8 + 2) * 4
    assert hybrid.make_window(8, 4, 16, 4).total == (8 + -(-(16 + 2) // 4) + 1) * 4
    assert hybrid.make_state_fine(8, 4, 16, 4).total == hybrid.make_state_fine_least(8, 4, 16, 4).total + 2 * 4


def coordinator(made: Any) -> Any:
    return made._scheduler.kv_cache_manager.coordinator


def reaches_further(*sizes: int) -> Any:
    """Declares one position more than the engine keeps."""
    made = hybrid.make_window(*sizes)
    made.groups = (made.groups[0], made.groups[1]._replace(reach=made.groups[1].reach + 1))
    return made


def frees_by_plan(*sizes: int) -> Any:
    """Frees what is behind the window by the number of planned tokens, as before vllm#47728."""
    made = hybrid.make_async_ngram_window(*sizes)
    groups, scheduler = coordinator(made), made._scheduler
    removes = groups.remove_skipped_blocks

    def remove(rid: str, _processed: int, *args: Any, **named: Any) -> None:
        removes(rid, scheduler.requests[rid].num_computed_tokens, *args, **named)

    groups.remove_skipped_blocks = remove
    return made


def tells_the_first_group(*sizes: int) -> Any:
    """The worker appends new blocks to the table of the first group only."""
    made = hybrid.make_window(*sizes)
    tell = made._tell_worker

    def tell_worker(output: Any) -> None:
        before = {rid: [list(table) for table in tables] for rid, tables in made._by_group.items()}
        tell(output)
        for rid in output.scheduled_cached_reqs.req_ids:
            if rid in before and rid not in output.scheduled_cached_reqs.resumed_req_ids:
                made._by_group[rid][1] = before[rid][1]

    made._tell_worker = tell_worker
    return made


def keeps_the_column(*sizes: int) -> Any:
    """The worker keeps the column of a state behind the preemption of its request."""
    made = hybrid.make_state(*sizes)
    made._forget = lambda rid: made._by_group.pop(rid, None)
    return made


def forgets_copies(*sizes: int) -> Any:
    """A hit that ends within a block is not copied."""
    made = hybrid.make_state_fine(*sizes)
    made._block_copies = lambda _output: []
    return made


def never_cuts(*sizes: int) -> Any:
    """The scheduler cuts no chunk where a state must be saved."""
    made = hybrid.make_state(*sizes)
    made._scheduler.need_mamba_block_aligned_split = False
    return made


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (reaches_further, "held_tables"),
        (frees_by_plan, "held_tables"),
        (tells_the_first_group, "coverage"),
        (keeps_the_column, "state_soundness"),
        (forgets_copies, "state_soundness"),
        (never_cuts, "state_soundness"),
    ],
)
def test_a_planted_fault_is_found(make: Any, law: str) -> None:
    outcome = walk(KVSchedulerModel, make, 6_000, seed=0)
    assert outcome.failure is not None
    assert outcome.failure.law == law, outcome.failure.message
