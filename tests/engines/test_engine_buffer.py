"""SGLang's storage with host memory as a buffer only: no false alarm, and bugs planted into its pipeline are found."""

from __future__ import annotations

from typing import Any

import pytest
from driving import walk
from engine_targets import target_or_skip

from kvlockstep.models.kv_scheduler import KVSchedulerModel

REASON = "sglang is not on this machine: see --engine-path"
buffered = pytest.importorskip("kvlockstep.impl.engines.sglang.tiers.buffered", reason=REASON, exc_type=ImportError)


@pytest.mark.parametrize("end", ["", "-normal", "-best-effort", "-timeout", "-selective", "-rust", "-pins"])
def test_no_false_alarm(end: str) -> None:
    outcome = walk(KVSchedulerModel, target_or_skip("kv_scheduler", f"sglang-buffer{end}").factory, 3_000)
    assert outcome.failure is None, outcome.failure
    goals = {"move", "move_fails", "moved_load", "beside_move", *([] if end else ["kept_by_move"])}
    assert goals <= {goal for goal, n in outcome.reach.items() if n}


def frees_host_pages_at_the_load(self: Any, original: Any, params: Any) -> Any:
    found = original(params)
    for load in self.ongoing_buffer_load_back.values():
        self._free_staging_now(load.host_indices, load.aux_xfers)
        load.host_indices = load.host_indices[:0]
    return found


def frees_host_pages_at_the_copy(self: Any, original: Any, ack: Any) -> None:
    entry = self.ongoing_write_through[ack]
    original(ack)
    self._free_staging_now(entry.host_indices, entry.aux_xfers)


def copies_without_a_lock(self: Any, original: Any, *given: Any) -> bool:
    staged = bool(original(*given))
    for entry in list(self.ongoing_write_through.values())[-1:] if staged else ():
        self._cache.dec_lock_ref(entry.intent.snapshot.node_id, entry.lock_params)
    return staged


@pytest.mark.parametrize(
    ("method", "broken", "laws"),
    [
        (
            "init_load_back",
            frees_host_pages_at_the_load,
            {"source_stable", "backed", "target_owned", "load_before_read"},
        ),
        ("finish_backup_ack", frees_host_pages_at_the_copy, {"backed", "source_stable", "target_owned"}),
        ("_stage_backup_intent", copies_without_a_lock, {"source_stable", "error_contract"}),
    ],
)
def test_a_bug_in_the_pipeline_is_found(method: str, broken: Any, laws: set[str]) -> None:
    def make(*sizes: int) -> Any:
        made = buffered.make(*sizes)
        pipeline = made._host.pipeline
        original = getattr(pipeline, method)
        setattr(pipeline, method, lambda *given: broken(pipeline, original, *given))
        return made

    outcome = walk(KVSchedulerModel, make, 6_000)
    assert outcome.failure is not None
    assert outcome.failure.law in laws, outcome.failure.message
