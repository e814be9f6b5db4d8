"""SGLang's storage behind its host tier: no false alarm by any policy, and bugs planted into the engine are found."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest
from engine_targets import replayed_or_skip, target_or_skip, walk_or_skip

from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_scheduler.judge import SchedulerJudge
from kvlockstep.reference.kv.transfers import Fetching

EVICT = "sglang.srt.mem_cache.base_prefix_cache:EvictParams"
TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
PROMPT = [1, 2, 3, 4, 5]


def fetching(target: str) -> SchedulerJudge:
    """The first two pages of b are in the storage only, and it has asked for them."""
    make: Callable[..., Any] = target_or_skip("kv_scheduler", target).factory
    run = SchedulerJudge(make(5, 2, 10, 4), 10, 4)
    run.add("a", PROMPT, None, 1, None)
    run.drain([9])
    tree = run.adapter._tree
    tree.evict(resolve_name(EVICT)(num_tokens=4))
    assert tree.evict_host(4) == 4
    run.add("b", PROMPT, None, 1, None)
    return run


@pytest.mark.parametrize(("end", "empty"), [("-best-effort", 0), ("-timeout", 2)])
def test_a_policy_says_how_long_a_request_waits(end: str, empty: int) -> None:
    run = fetching(f"sglang-storage{end}")
    for _ in range(empty):
        assert str(run.schedule([9])) == "nothing"
        run.update()
    assert str(run.schedule([9])) == "b[0:5]"


def test_a_request_waits_for_the_end_and_loads_what_has_come() -> None:
    run = fetching("sglang-storage-normal")
    for _ in range(4):
        assert str(run.schedule([9])) == "nothing"
        run.update()
    run.complete_all()
    assert str(run.schedule([9])) == "b[4:5]"
    assert run.goals_met["moved_load"] == 1


def end_all(manager: Any) -> list[str]:
    """Ends what is submitted, and what follows from that. Returns the kinds of it."""
    kinds = []
    while submitted := manager.transfers():
        for transfer in submitted:
            kinds.append(transfer.kind)
            manager.complete(transfer.id, True)
        manager.poll()
    return kinds


def test_who_waits_for_what_is_given_up_may_be_overtaken() -> None:
    """The fetch of r4 is given up to make room for r5, which starts in the same pass."""
    replayed = replayed_or_skip("sglang-storage-back-given-up")
    assert replayed.failure is None
    assert replayed.answers[-1] == "r5[32:33]"


def test_who_has_asked_the_storage_in_vain_is_not_told_to_wait() -> None:
    """What was fetched for r4 is evicted before it starts, and the host has no room to fetch it again."""
    replayed = replayed_or_skip("sglang-storage-back-asks-in-vain")
    assert replayed.failure is None
    assert replayed.answers[-1] == "refused"


@pytest.mark.parametrize("end", ["", "-python"])
def test_an_admission_waits_for_what_is_read(end: str) -> None:
    manager: Any = target_or_skip("kv_manager", f"sglang-storage{end}").factory(8, 2)
    assert manager.admit("a", PROMPT, None, 5) == 0
    manager.launch()
    manager.commit("a", 5)
    manager.finish("a")
    assert end_all(manager) == ["store", "move"]
    manager._tree.evict(resolve_name(EVICT)(num_tokens=4))
    assert manager._tree.evict_host(4) == 4
    assert manager.admit("b", PROMPT, None, 5) == Fetching()
    assert end_all(manager) == ["move", "move"]
    assert manager.admit("b", PROMPT, None, 5) == 4
    manager.launch()
    manager.commit("b", 1)
    manager.finish("b")
    assert manager.tier("storage").cached == [0, 1]
    manager.reset()
    assert not manager.tier("storage").cached


@pytest.mark.parametrize("end", ["", "-back"])
def test_no_false_alarm_about_a_tree(end: str) -> None:
    outcome = walk_or_skip(KVManagerModel, f"sglang-storage{end}", 1_500)
    assert outcome.failure is None, outcome.failure
    assert {"move", "move_fails", "fetching", "fetch_beside"} <= {goal for goal, n in outcome.reach.items() if n}


@pytest.mark.parametrize("end", ["", "-normal", "-best-effort", "-timeout", "-back", "-back-rust"])
def test_no_false_alarm(end: str) -> None:
    outcome = walk_or_skip(KVSchedulerModel, f"sglang-storage{end}", 2_000)
    assert outcome.failure is None, outcome.failure
    assert {"move", "move_fails", "moved_load", "beside_move"} <= {goal for goal, n in outcome.reach.items() if n}


def backs_up_without_a_lock(original: Any, self: Any, node_id: Any) -> None:
    original(self, node_id)
    while self.ongoing_backup:
        self.dec_host_lock_ref(*self.ongoing_backup.popitem()[1])


def counts_all_of_a_fetch(original: Any, self: Any, operation: Any) -> None:
    operation.completed_tokens = len(operation.host_indices)
    original(self, operation)


def never_sees_the_end(original: Any, self: Any, request: Any) -> bool:
    return bool(original(self, request)) and not self.prefetch_loaded_tokens_by_reqid.get(request)


@pytest.mark.parametrize(
    ("target", "method", "broken", "laws"),
    [
        ("sglang-storage", "write_backup_storage", backs_up_without_a_lock, {"source_stable"}),
        ("sglang-storage-back-rust", "write_backup_storage", backs_up_without_a_lock, {"source_stable"}),
        ("sglang-storage", "_handle_prefetch_result", counts_all_of_a_fetch, {"failure_visible"}),
        ("sglang-storage-best-effort", "_handle_prefetch_result", counts_all_of_a_fetch, {"prefix_soundness"}),
        ("sglang-storage", "check_prefetch_progress", never_sees_the_end, {"progress", "admission_order"}),
    ],
)
def test_a_bug_in_the_engine_is_found(
    monkeypatch: pytest.MonkeyPatch, target: str, method: str, broken: Any, laws: set[str]
) -> None:
    target_or_skip("kv_scheduler", target)
    kind = resolve_name(TREE)
    original = getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda *args, **options: broken(original, *args, **options))
    outcome = walk_or_skip(KVSchedulerModel, target, 6_000)
    assert outcome.failure is not None
    assert outcome.failure.law in laws, outcome.failure.message
