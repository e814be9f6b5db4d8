"""Host tiers of engines under kv_scheduler: vLLM's SimpleCPUOffloadConnector, SGLang's hierarchical cache."""

from __future__ import annotations

from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import pytest
from engine_targets import target_or_skip, walk_or_skip

from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import play_ops
from kvlockstep.models.core.op import Op
from kvlockstep.models.registry import model_of

MODEL = model_of("kv_scheduler")
MANAGER = "vllm.v1.simple_kv_offload.manager:SimpleCPUOffloadScheduler"
WINDOW = "sglang.srt.mem_cache.unified_cache.components.swa:SWAComponent"
TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"


@pytest.mark.parametrize(
    "target",
    [
        "vllm-simple",
        "vllm-simple-async",
        "vllm-simple-lazy",
        "vllm-simple-lazy-async",
        "vllm-simple-window",
        "vllm-simple-two-sizes",
        "vllm-simple-state-window",
        "vllm-simple-lazy-window",
        "vllm-simple-async-window",
        "vllm-offloading-windows",
        "vllm-offloading-state",
        "vllm-connector-priority",
        "sglang-hicache",
        "sglang-hicache-normal",
        "sglang-hicache-back",
        "sglang-hicache-selective",
        "sglang-hicache-window",
        "sglang-hicache-window-normal",
        "sglang-hicache-window-back",
    ],
)
def test_no_false_alarm(target: str) -> None:
    outcome = walk_or_skip(MODEL, target, 2_000)
    assert outcome.failure is None
    assert {"store", "load", "tier_eviction"} <= {goal for goal, n in outcome.reach.items() if n}


def loads_one_block_less(original: Any, self: Any, output: Any) -> Any:
    meta = original(self, output)
    meta.load_cpu_blocks, meta.load_gpu_blocks = meta.load_cpu_blocks[1:], meta.load_gpu_blocks[1:]
    return meta


def loads_no_last_block(original: Any, self: Any, output: Any) -> Any:
    """The last one is of the last group."""
    meta = original(self, output)
    meta.load_cpu_blocks, meta.load_gpu_blocks = meta.load_cpu_blocks[:-1], meta.load_gpu_blocks[:-1]
    return meta


def stores_in_other_order(original: Any, self: Any, output: Any) -> Any:
    """The blocks of one group come into the units of another."""
    meta = original(self, output)
    meta.store_cpu_blocks = meta.store_cpu_blocks[::-1]
    return meta


def keeps_what_was_promised(original: Any, self: Any, pending: Any) -> None:
    """The pin of a hit that nobody came for."""


def stores_without_a_lock(original: Any, self: Any, action: Any, write_back: bool = False) -> Any:
    return original(self, action, write_back=True)


def starts_no_load(original: Any, self: Any) -> int:
    return -1


def loads_the_window_backwards(original: Any, self: Any, node: Any, phase: Any, **options: Any) -> Any:
    transfers = original(self, node, phase, **options)
    for transfer in transfers or () if phase.name == "LOAD_BACK" else ():
        transfer.host_indices = transfer.host_indices.view(-1, 2).flip(0).flatten()
    return transfers


@pytest.mark.parametrize(
    ("target", "owner", "method", "broken", "laws"),
    [
        ("vllm-simple", MANAGER, "build_connector_meta", loads_one_block_less, {"prefix_soundness", "progress"}),
        ("vllm-simple-window", MANAGER, "build_connector_meta", loads_no_last_block, {"prefix_soundness"}),
        ("vllm-simple-state", MANAGER, "build_connector_meta", loads_no_last_block, {"state_soundness"}),
        ("vllm-simple-window", MANAGER, "build_connector_meta", stores_in_other_order, {"prefix_soundness"}),
        ("vllm-simple", MANAGER, "_free_pending_cpu_hit", keeps_what_was_promised, {"quiescence"}),
        (
            "sglang-hicache-normal",
            TREE,
            "_execute_and_commit_kv_backup",
            stores_without_a_lock,
            {"transfer_isolation", "source_stable"},
        ),
        ("sglang-hicache-normal", TREE, "ready_to_load_host_cache", starts_no_load, {"prefix_soundness"}),
        (
            "sglang-hicache-window-normal",
            WINDOW,
            "build_hicache_transfers",
            loads_the_window_backwards,
            {"prefix_soundness"},
        ),
    ],
)
def test_a_bug_in_the_engine_is_found(
    monkeypatch: pytest.MonkeyPatch, target: str, owner: str, method: str, broken: Any, laws: set[str]
) -> None:
    target_or_skip("kv_scheduler", target)
    kind = resolve_name(owner)
    original = getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda *args, **options: broken(original, *args, **options))
    outcome = walk_or_skip(MODEL, target, 3_000)
    assert outcome.failure is not None
    assert outcome.failure.law in laws, outcome.failure.message


def test_what_has_ended_behind_another_store_is_not_waited_for() -> None:
    """Before it retracts, the repaired scheduler waits for its stores; the second had ended, and was not heard of."""
    factory = target_or_skip("kv_scheduler", "sglang-hicache-normal").factory
    prompts = {"r0": ([1, 0, 0, 0, 0], 0), "r1": ([0], None), "r2": ([0], 0)}
    ops = [
        Op("add", request=name, tokens=tokens, extra_key=key, max_tokens=2, priority=None)
        for name, (tokens, key) in prompts.items()
    ]
    for _ in range(2):
        ops += [Op("schedule", tokens=[1]), Op("update")]
    ops += [Op("complete", transfer=1), Op("poll"), Op("schedule", tokens=[0])]
    scope = replace(next(iter(MODEL.scopes)), blocks=8, block_size=1, budget=6, running=3, live=5, outputs=4)
    with Watchdog(20.0).watching() as watchdog:
        outcome = play_ops(MODEL, factory, scope, ops, watchdog)
    assert outcome.failure is None, outcome.failure.message
    assert outcome.answers[-1].startswith("r1[1:2] r2[1:2] preempted r0"), "it has drained its stores"
