"""vLLM's tiers in their configurations: chunks, thresholds, limits, a second tier, a file, failures inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import pytest
from engine_targets import replayed_or_skip, target_or_skip, walk_or_skip

from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import play_ops
from kvlockstep.models.core.op import Op
from kvlockstep.models.registry import model_of

MODEL = model_of("kv_scheduler")
OFFLOADING = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler"
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
TIERING = "vllm.v1.kv_offload.tiering.manager:TieringOffloadingManager"
SIMPLE = "vllm.v1.simple_kv_offload.manager:SimpleCPUOffloadScheduler"
MANAGER = "vllm.v1.kv_offload.cpu.manager:CPUOffloadingManager"


@pytest.mark.parametrize(
    ("target", "goals"),
    [
        ("vllm-offloading-prompt", set()),
        ("vllm-offloading-chunks", {"load_blocks"}),
        ("vllm-offloading-threshold", set()),
        ("vllm-offloading-capped", set()),
        ("vllm-offloading-chunks-window", {"loaded_groups"}),
        ("vllm-tiering", {"move", "moved_load", "move_fails", "move_torn", "beside_move", "lost"}),
        ("vllm-tiering-by-request", {"move", "moved_load", "move_fails", "move_torn", "lost"}),
        ("vllm-tiering-window", {"move", "moved_load", "loaded_groups"}),
        ("vllm-simple-small", {"announced_tier"}),
        ("vllm-simple-disk", {"announced_tier"}),
        ("vllm-connector-inside-fail", {"own_load_fails"}),
    ],
)
def test_no_false_alarm(target: str, goals: set[str]) -> None:
    outcome = walk_or_skip(MODEL, target, 2_000)
    assert outcome.failure is None, outcome.failure.message
    assert {"store", "load", *goals} <= {goal for goal, n in outcome.reach.items() if n}


def stored_of(target: str, prompts: Sequence[Sequence[int]], max_tokens: int = 1) -> int:
    """How many blocks the CPU tier has of these prompts, one after the other, each of them run to its end."""
    made: list[Any] = []
    factory = target_or_skip("kv_scheduler", target).factory

    def make(*sizes: int) -> Any:
        made.append(factory(*sizes))
        return made[-1]

    ops: list[Op] = []
    for n, tokens in enumerate(prompts):
        name = f"r{n}"
        ops.append(Op("add", request=name, tokens=tokens, extra_key=None, max_tokens=max_tokens, priority=None))
        ops.append(Op("drain", tokens=[3]))
    scope = replace(next(iter(MODEL.scopes)), blocks=12, block_size=1, budget=12, running=2, live=3, outputs=8)
    with Watchdog(20.0).watching() as watchdog:
        played = play_ops(MODEL, make, scope, ops, watchdog)
    assert played.failure is None, played.failure.message
    assert len(played.answers) == len(ops)
    return len(made[-1].tier("cpu").cached)


def test_who_waits_for_a_block_that_ends_with_his_prompt_is_not_starved() -> None:
    """r2 and r3 have the same prompt of two blocks, and both are promoted for r2."""
    replayed = replayed_or_skip("vllm-tiering-whole-prompt")
    assert replayed.failure is None, replayed.failure


def test_whose_load_has_failed_in_full_reserves_nothing_for_himself() -> None:
    """r6 needs two of three blocks. Its first load has failed, and the tier has the block still."""
    replayed = replayed_or_skip("vllm-connector-loads-again")
    assert replayed.failure is None, replayed.failure


def test_whose_load_has_failed_in_full_waits_behind_who_came_earlier() -> None:
    """The load of r7 has failed, and r6, which is older, is preempted."""
    replayed = replayed_or_skip("vllm-connector-failed-behind-older")
    assert replayed.failure is None, replayed.failure
    assert replayed.judged("admission_order")


def test_who_shares_the_lost_blocks_of_an_aborted_request_computes_them() -> None:
    """r2 and r3 need six blocks that were lost, r2 was set back to compute them, and is aborted."""
    replayed = replayed_or_skip("vllm-connector-inside-owner-aborted")
    assert replayed.failure is None, replayed.failure


def test_what_is_decoded_is_stored_unless_only_prompts_are() -> None:
    assert stored_of("vllm-offloading", [[1, 2, 1, 2]], max_tokens=4) == 7
    assert stored_of("vllm-offloading-prompt", [[1, 2, 1, 2]], max_tokens=4) == 4


def test_a_chunk_is_stored_when_all_its_blocks_are_there() -> None:
    assert [stored_of("vllm-offloading-chunks", [[1, 2, 1, 2, 1][:n]]) for n in (1, 3, 4, 5)] == [0, 2, 4, 4]


def test_a_block_is_stored_when_it_has_been_offered_twice() -> None:
    assert stored_of("vllm-offloading-threshold", [[1, 2, 1]]) == 0
    assert stored_of("vllm-offloading-threshold", [[1, 2, 1], [1, 2, 2]]) == 2


def test_of_a_request_with_a_limit_no_more_is_stored() -> None:
    """The first request has a limit of two blocks, the second one only for loads."""
    assert stored_of("vllm-offloading-capped", [[1, 2, 1, 2]]) == 2
    assert stored_of("vllm-offloading-capped", [[1, 2, 1, 2], [2, 1, 2, 1]]) == 6


def begins_at_the_first_block(original: Any, block_ids: Any, group_sizes: Any, block_indices: Any) -> Any:
    """A worker takes the blocks of a load for those at the beginning of their chunks."""
    return original(block_ids, group_sizes, [0] * len(block_indices))


def takes_failed_chunks(_: Any, self: Any, job_metadata: Any, completed_job: Any) -> None:
    """A promotion that has failed counts as one that is there."""
    job = job_metadata.transfer_job
    self.primary_tier.complete_write(job.keys, job.req_context, True)


def is_there_at_once(original: Any, self: Any) -> None:
    """A chunk counts as promoted when its promotion is submitted."""
    original(self)
    for job, _ in self._jobs.values():
        if job.is_promotion:
            self.primary_tier.complete_write(job.keys, job.req_context, True)


def pins_nothing(original: Any, self: Any, keys: Any, context: Any, **options: Any) -> Any:
    """What is being read may be evicted."""
    spec = original(self, keys, context, **options)
    for key in keys:
        self._policy.get(key).ref_cnt -= 1
        self._policy.mark_evictable(key)
        self._num_evictable_cache_chunks += 1
    return spec


def ends_without_a_pin(_: Any, self: Any, keys: Any, context: Any) -> None:
    """The other end of `pins_nothing`."""


def removes_from_the_pool(_: Any, self: Any) -> Any:
    """What is evicted from the file is announced as gone from the pool."""
    return self.cpu_block_pool.take_events()


def ends_nobody(_: Any, self: Any, invalid: Any, scheduled: Any) -> set[str]:
    """Whose load has failed goes on."""
    return set()


@pytest.mark.parametrize(
    ("target", "broken", "laws"),
    [
        (
            "vllm-offloading-chunks",
            {f"{OFFLOADING}:GPULoadStoreSpec": begins_at_the_first_block},
            {"prefix_soundness", "error_contract", "backed"},
        ),
        ("vllm-tiering", {f"{TIERING}._complete_promotion": takes_failed_chunks}, {"failure_visible"}),
        ("vllm-tiering", {f"{TIERING}._flush_pending_promotions": is_there_at_once}, {"target_owned"}),
        (
            "vllm-tiering",
            {f"{MANAGER}._prepare_load": pins_nothing, f"{MANAGER}.complete_load": ends_without_a_pin},
            {"source_stable", "error_contract", "backed"},
        ),
        ("vllm-simple-disk", {f"{SIMPLE}.take_events": removes_from_the_pool}, {"event_consistency"}),
        ("vllm-connector-inside-fail", {f"{SCHEDULER}._handle_invalid_blocks": ends_nobody}, {"ending"}),
    ],
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, target: str, broken: dict[str, Any], laws: set[str]
) -> None:
    target_or_skip("kv_scheduler", target)
    for path, plant in broken.items():
        owner, name = path.rsplit("." if "." in path.split(":")[1] else ":", 1)
        kind: Any = resolve_name(owner)
        original = getattr(kind, name)
        monkeypatch.setattr(kind, name, planted(plant, original))
    outcome = walk_or_skip(MODEL, target, 4_000)
    assert outcome.failure is not None
    assert outcome.failure.law in laws, outcome.failure.message


def planted(plant: Any, original: Any) -> Any:
    return lambda *args, **options: plant(original, *args, **options)


def test_a_load_is_reported_with_the_batch_that_has_waited_for_it() -> None:
    """A load of the second batch in flight has failed, with one of its two blocks written."""
    target_or_skip("kv_scheduler", "vllm-connector-inside")
    module: Any = resolve_name("kvlockstep.impl.engines.vllm.transfers.connector")
    connector = module.TierConnector(4, 1, True, False, None)
    connector._submit(False)
    job = module.Job("r", True, ["first", "second"], [0, 1], [5, 6], inside=True)
    id = connector._note(job)
    connector._submit(True)
    connector.complete(id, 1)
    assert [connector.results().invalid_block_ids for _ in range(2)] == [set(), {6}]
