"""The adapters of SGLang: its prefix trees over its own allocators and admission budget, under kv_manager."""

from __future__ import annotations

import tomllib
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from computing import compute
from driving import walk

from kvlockstep.core.trace import load_trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import run_ops
from kvlockstep.models.registry import model_of

MISSING = "SGLang is not on this machine: see --engine-path"
target = pytest.importorskip(
    "kvlockstep.impl.engines.sglang.manager",
    reason=MISSING,
    exc_type=ImportError,
)
components = pytest.importorskip("kvlockstep.impl.engines.sglang.block_stack", reason=MISSING, exc_type=ImportError)

BLOCKS, SIZE = 6, 2
MAKES = (target.make_radix, target.make_unified_python, target.make_unified_rust)
each_tree = pytest.mark.parametrize("make", MAKES)


def decode(adapter: Any, rid: str, token: int) -> bool:
    adapter.append(rid, token)
    accepted: bool = adapter.reserve(rid, 1)
    if accepted:
        adapter.launch()
        adapter.commit(rid, 1)
    return accepted


def test_each_make_has_the_tree_of_its_name() -> None:
    trees = [type(getattr(make(BLOCKS, SIZE)._tree, "tree_core", None)).__name__ for make in MAKES]
    assert trees == ["NoneType", "UnifiedTreeCore", "RustUnifiedTreeCore"]


@each_tree
@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_the_pool_is_exactly_what_was_asked_for(make: Any, size: int) -> None:
    adapter = make(5, size)
    assert adapter.total == adapter.avail() == adapter.free_now() == 5 * size
    assert sorted(adapter.free_slots()) == list(range(size, 6 * size)), "page 0 is padding"


@each_tree
def test_a_prefix_is_shared_while_its_owner_lives_and_after(make: Any) -> None:
    adapter = make(BLOCKS, SIZE)
    assert compute(adapter, "a", [1, 2, 3, 4, 5]) == 0
    assert compute(adapter, "b", [1, 2, 3, 4]) == 2, "the last page of a whole-page prompt is computed again"
    assert adapter.slots("b") == adapter.slots("a")[:4], "and given up for the one that is there"
    adapter.finish("a")
    adapter.finish("b")
    assert adapter.free_now() == 4 * SIZE < adapter.avail() == adapter.total
    assert compute(adapter, "c", [1, 2, 3, 4, 9]) == 4


@each_tree
def test_a_hit_needs_the_same_extra_key_or_salt(make: Any) -> None:
    adapter = make(24, SIZE)
    compute(adapter, "a", [1, 2, 3], 0)
    compute(adapter, "b", [1, 2, 3], 7)
    assert [compute(adapter, f"key {key}", [1, 2, 3], key) for key in (None, 2, 1, 0, 7)] == [0, 0, 0, 2, 2]


@each_tree
def test_the_output_is_published_when_the_request_ends(make: Any) -> None:
    adapter = make(BLOCKS, SIZE)
    compute(adapter, "a", [1, 2, 3])
    assert decode(adapter, "a", 4)
    assert compute(adapter, "b", [1, 2, 3, 4, 5]) == 2
    adapter.abort("b")
    adapter.append("a", 5)
    adapter.finish("a")
    assert compute(adapter, "c", [1, 2, 3, 4, 5]) == 4


@each_tree
def test_admission_keeps_a_page(make: Any) -> None:
    adapter = make(BLOCKS, SIZE)
    assert adapter.admit("a", [1] * (BLOCKS - 1) * SIZE, None, 10) is None
    assert adapter.avail() == adapter.total
    assert compute(adapter, "b", [1] * ((BLOCKS - 1) * SIZE - 1)) == 0


@each_tree
def test_what_a_step_decodes_is_not_admitted_away(make: Any) -> None:
    adapter = make(BLOCKS, SIZE)
    compute(adapter, "a", [1, 2])
    adapter.append("a", 3)
    assert adapter.reserve("a", 1)
    assert adapter.admit("b", [5] * 6, None, 6) is None
    assert adapter.admit("b", [5] * 5, None, 5) == 0
    adapter.launch()
    assert len(set(adapter.slots("a") + adapter.slots("b"))) == 8


@each_tree
def test_an_aborted_chunk_publishes_nothing(make: Any) -> None:
    adapter = make(BLOCKS, SIZE)
    assert adapter.admit("a", [1, 2, 3, 4, 5], None, 4) == 0
    adapter.launch()
    adapter.abort("a")
    assert adapter.free_now() == adapter.total


@each_tree
def test_a_retracted_request_comes_back_with_its_output(make: Any) -> None:
    adapter = make(BLOCKS, SIZE)
    compute(adapter, "a", [1, 2, 3])
    decode(adapter, "a", 4)
    adapter.append("a", 5)
    adapter.preempt("a")
    assert adapter.avail() == adapter.total
    assert compute(adapter, "a", [1, 2, 3, 4, 5]) == 2
    adapter.finish("a")
    assert compute(adapter, "b", [1, 2, 3, 4, 9]) == 4


@each_tree
def test_a_chunk_may_end_within_a_page(make: Any) -> None:
    adapter = make(BLOCKS, 4, exact_chunks=True)
    assert compute(adapter, "a", [1, 2, 3, 4, 5, 6, 7, 8, 9], n=3) == 0
    assert len(adapter.slots("a")) == 3
    assert adapter.reserve("a", 3)
    adapter.launch()
    adapter.commit("a", 3)
    assert adapter.slots("a")[0] + 3 == adapter.slots("a")[3], "of the page that was open"


@each_tree
def test_reset_forgets_everything(make: Any) -> None:
    adapter = make(BLOCKS, SIZE)
    compute(adapter, "a", [1, 2, 3])
    compute(adapter, "b", [4])
    adapter.preempt("b")
    adapter.reset()
    assert adapter.avail() == adapter.free_now() == adapter.total
    assert compute(adapter, "c", [1, 2, 3]) == 0


WANTED = {"hit", "full_prompt_hit", "eviction", "physical_reuse", "twins", "refused_admission", "refused_reserve"}
WANTED |= {"chunk", "preempt", "resume", "launched_abort", "reset_live", "evict_all", "extra_key", "admit_into_step"}


@each_tree
@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, 10_000), ({"exact_chunks": True}, 3_000), ({"is_eagle": True}, 3_000), ({"need_sort": True}, 3_000)],
)
def test_random_episodes_hold_every_law(make: Any, options: dict[str, bool], steps: int) -> None:
    outcome = walk(model_of("kv_manager"), partial(make, **options), steps)
    assert outcome.failure is None
    assert steps < 10_000 or outcome.reach.keys() >= WANTED


@pytest.mark.parametrize("known", ["sglang-prompt-near-pool", "sglang-starved-chunk", "sglang-unnamed-extra-key"])
def test_a_known_divergence_is_still_there(known: str) -> None:
    folder = Path(target.__file__).parent
    entries = {entry["id"]: entry for entry in tomllib.loads((folder / "known.toml").read_text())["divergence"]}
    make = getattr(target, entries[known]["target"].partition(":")[2])
    trace = load_trace(folder / entries[known]["trace"])
    with Watchdog(10.0).watching() as watchdog:
        failure = run_ops(model_of("kv_manager"), make, trace.scope, trace.ops, watchdog)
        held = run_ops(model_of("kv_manager"), target.make_unified_rust, trace.scope, trace.ops, watchdog)
    assert failure is not None
    assert failure.law == entries[known]["law"]
    assert held is None, "with the trait, or with an answer before the engine raises, nothing is left"


def locks_nothing(self: Any, node: Any, **_options: Any) -> None:
    return None


def forgets_the_output(_self: Any, _kv: Any, _ranges: Any) -> None:
    return None


def keeps_its_own_copies(self: Any, action: Any) -> None:
    if type(action).__name__ != "FreeDeviceKV":
        apply_cache_action(self, action)


def matches_any_key(self: Any, params: Any) -> Any:
    params.key.extra_key = None
    return match_prefix(self, params)


def frees_the_page_that_follows(self: Any, free_index: Any, *, start_pos: int) -> None:
    free_segment(self, free_index + self.page_size if len(free_index) > self.page_size else free_index, start_pos=0)


def finds_one_page_too_many(self: Any, params: Any) -> Any:
    params.key.limit = None
    return match_prefix(self, params)


OTHERS = "event_consistency prefix_soundness write_isolation"
SHIFTED = "eviction_safety no_double_free content_equality no_aliasing"
UNLOCKED = "accounting leak_freedom eviction_safety content_equality error_contract"
apply_cache_action = target.UnifiedRadixCache._apply_cache_action
free_segment = target.PagedTokenToKVPoolAllocator.free_segment
match_prefix = target.UnifiedRadixCache.match_prefix


@pytest.mark.parametrize("make", [target.make_unified_python, target.make_unified_rust])
@pytest.mark.parametrize(
    ("owner", "name", "broken", "law"),
    [
        (target.UnifiedRadixCache, "lock", locks_nothing, UNLOCKED),
        (target.UnifiedRadixCache, "free_kv_row", forgets_the_output, "leak_freedom accounting"),
        (target.UnifiedRadixCache, "_apply_cache_action", keeps_its_own_copies, "leak_freedom accounting"),
        (target.UnifiedRadixCache, "match_prefix", matches_any_key, OTHERS),
        (
            target.PagedTokenToKVPoolAllocator,
            "free_segment",
            frees_the_page_that_follows,
            SHIFTED,
        ),
        (target.UnifiedRadixCache, "match_prefix", finds_one_page_too_many, "hit_bounds error_contract"),
    ],
)
def test_a_broken_engine_is_caught(
    monkeypatch: pytest.MonkeyPatch, make: Any, owner: Any, name: str, broken: Any, law: str
) -> None:
    monkeypatch.setattr(owner, name, broken)
    failure = walk(model_of("kv_manager"), make, 5_000).failure
    assert failure is not None
    assert failure.law in law.split()


@pytest.mark.parametrize("make", [target.make_radix, target.make_unified_python])
@pytest.mark.parametrize("silent", ["record_remove", "record_all_cleared"])
def test_an_event_that_is_not_sent_is_missed(monkeypatch: pytest.MonkeyPatch, make: Any, silent: str) -> None:
    recorder = import_module(target.KvEventLoraNames.__module__).KVCacheEventRecorder
    monkeypatch.setattr(recorder, silent, lambda *_args, **_options: None)
    failure = walk(model_of("kv_manager"), make, 5_000).failure
    assert failure is not None
    assert failure.law == "event_consistency"


def test_the_paged_allocator_is_a_stack_of_pages() -> None:
    outcome = walk(model_of("block_stack"), components.PagedBlockStack, 5_000)
    assert outcome.failure is None


def test_an_allocator_that_appends_is_no_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    def appends(self: Any, *page_ids: Any) -> None:
        self.free_pages = target.torch.cat((self.free_pages, *page_ids))

    monkeypatch.setattr(target.PagedTokenToKVPoolAllocator, "_release_page_ids", appends)
    outcome = walk(model_of("block_stack"), components.PagedBlockStack, 5_000)
    assert outcome.failure is not None
