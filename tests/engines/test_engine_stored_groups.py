"""SGLang's storage with windows and states, cached on the host or not: no false alarm, and planted bugs are found."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

import pytest
from engine_targets import target_or_skip, walk_or_skip

from kvlockstep.models.kv_scheduler import KVSchedulerModel

CONTROLLER = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller:HybridCacheController"
TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"


@pytest.mark.parametrize("kind", ["window", "state", "state-window"])
@pytest.mark.parametrize("mode", ["storage", "buffer"])
def test_no_false_alarm(mode: str, kind: str) -> None:
    outcome = walk_or_skip(KVSchedulerModel, f"sglang-{mode}-{kind}", 2_500)
    assert outcome.failure is None, outcome.failure
    goals = {"move", "move_fails", "moved_load", "beside_move"}
    assert goals <= {goal for goal, n in outcome.reach.items() if n}


def reads_what_is_in_front_of_it(original: Any, self: Any, transfers: Any, hashes: list[str], pages: int) -> None:
    original(self, transfers, hashes, pages)
    for transfer in transfers:
        transfer.keys = [hashes[max(0, hashes.index(key) - 1)] for key in transfer.keys]


def takes_what_has_come(original: Any, self: Any, request: Any, operation: Any, *given: Any) -> bool:
    for transfer in operation.pool_transfers or ():
        operation.pool_storage_result.extra_pool_hit_pages[transfer.name] = len(transfer.keys)
    return bool(original(self, request, operation, *given))


@pytest.mark.parametrize(
    ("target", "owner", "method", "broken", "laws"),
    [
        ("storage-window", TREE, "_check_hybrid_prefetch_result", takes_what_has_come, {"failure_visible"}),
        ("buffer-state", CONTROLLER, "_sync_trailing_keys", reads_what_is_in_front_of_it, {"state_soundness"}),
        ("storage-state", TREE, "_check_hybrid_prefetch_result", takes_what_has_come, {"failure_visible"}),
        ("buffer-window", TREE, "_check_hybrid_prefetch_result", takes_what_has_come, {"failure_visible"}),
    ],
)
def test_a_bug_in_the_engine_is_found(
    monkeypatch: pytest.MonkeyPatch, target: str, owner: str, method: str, broken: Any, laws: set[str]
) -> None:
    target_or_skip("kv_scheduler", f"sglang-{target}")
    kind = resolve_name(owner)
    original = getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda *args, **options: broken(original, *args, **options))
    outcome = walk_or_skip(KVSchedulerModel, f"sglang-{target}", 8_000)
    assert outcome.failure is not None
    assert outcome.failure.law in laws, outcome.failure.message
