"""The adapters of vLLM: its KV cache manager under kv_manager, its schedulers under kv_scheduler."""

from __future__ import annotations

import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from computing import compute
from driving import walk

from kvlockstep.core.trace import load_trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import run_ops
from kvlockstep.models.registry import model_of
from kvlockstep.targets import resolve

target = pytest.importorskip(
    "kvlockstep.impl.engines.vllm.manager",
    reason="vLLM is not on this machine: see --engine-path",
    exc_type=ImportError,
)
vllm = target.vllm

BLOCKS, SIZE = 4, 2


def test_the_pool_is_exactly_what_was_asked_for() -> None:
    adapter = target.make(5, 16)
    assert adapter.total == adapter.avail() == adapter.free_now() == 80
    assert sorted(adapter.free_blocks()) == [1, 2, 3, 4, 5], "block 0 is the null block"


@pytest.mark.parametrize("make", [target.make, target.make_lora])
def test_a_hit_needs_the_same_extra_key(make: Any) -> None:
    adapter = make(8, SIZE)
    compute(adapter, "a", [1, 2, 3], 0)
    assert [compute(adapter, str(key), [1, 2, 3, 4], key) for key in (None, 1, 0)] == [0, 0, 2]


def test_full_blocks_are_published_when_they_are_scheduled() -> None:
    adapter = target.make(BLOCKS, SIZE)
    assert adapter.admit("a", [1, 2, 3], None, 3) == 0
    assert adapter.admit("b", [1, 2, 4], None, 3) == 2, "of a block that this step writes"
    assert adapter.slots("b")[:2] == adapter.slots("a")[:2]


def test_a_prompt_that_does_not_fit_whole_is_refused_at_its_first_chunk() -> None:
    adapter = target.make(BLOCKS, SIZE)
    compute(adapter, "a", [1, 2, 3])
    before = adapter.avail()
    assert adapter.admit("b", [5, 6, 7, 8, 9], None, 2) is None
    assert adapter.avail() == before


def test_without_caching_nothing_is_hit() -> None:
    adapter = target.make_uncached(BLOCKS, SIZE)
    compute(adapter, "a", [1, 2, 3])
    assert compute(adapter, "b", [1, 2, 3]) == 0
    assert adapter.free_now() == adapter.avail() == 0


def test_rejected_drafts_are_not_published() -> None:
    adapter = target.make(BLOCKS, SIZE)
    compute(adapter, "a", [1, 2])
    adapter.append("a", 3)
    assert adapter.reserve("a", 3)
    adapter.launch()
    adapter.commit("a", 1)
    adapter.append("a", 4)
    assert adapter.reserve("a", 1)
    adapter.launch()
    adapter.commit("a", 1)
    adapter.finish("a")
    assert compute(adapter, "b", [1, 2, 3, 4, 5]) == 4


WANTED = {"hit", "full_prompt_hit", "eviction", "physical_reuse", "twins", "refused_admission", "refused_reserve"}
WANTED |= {"chunk", "preempt", "resume", "rejected_drafts", "launched_abort", "reset_live", "evict_all", "extra_key"}


@pytest.mark.parametrize("make", [target.make, target.make_uncached, target.make_lora])
def test_random_episodes_hold_every_law(make: Any) -> None:
    outcome = walk(model_of("kv_manager"), make, 15_000)
    assert outcome.failure is None
    assert WANTED - {"hit", "full_prompt_hit", "eviction", "evict_all"} <= outcome.reach.keys()
    assert make is target.make_uncached or outcome.reach.keys() >= WANTED


def touches_without_counting(self: Any, blocks: Any) -> None:
    for block in blocks:
        if block.ref_cnt == 0:
            self.free_block_queue.remove(block)
            block.ref_cnt = 1


def evicts_but_stays_findable(_self: Any, _block: Any) -> bool:
    return False


def frees_once_too_often(self: Any, blocks: Any) -> None:
    blocks = list(blocks)
    free_blocks(self, blocks)
    free_blocks(self, [block for block in blocks[:1] if block.ref_cnt > 0])


def counts_no_evictable(_cls: Any, _blocks: Any) -> int:
    return 0


def hashes_without_parent(function: Any, _parent: Any, tokens: Any, keys: Any = None) -> Any:
    return hash_block_tokens(function, None, tokens, keys)


def hashes_without_keys(_request: Any, _start: int, _end: int, index: int) -> Any:
    return None, index


def removes_silently(_self: Any, _hashes: Any) -> None:
    pass


def stores_under_no_parent(self: Any, *args: Any, **options: Any) -> Any:
    return build_block_stored_event(self, *args, **{**options, "parent_block_hash": None})


def stores_the_tokens_before(self: Any, *args: Any, **options: Any) -> Any:
    size, start, end = (options[name] for name in ("block_size", "start_token_idx", "end_token_idx"))
    back = size if start >= size else 0
    return build_block_stored_event(
        self, *args, **{**options, "start_token_idx": start - back, "end_token_idx": end - back}
    )


def hits_the_last_token(self: Any, request: Any, most: Any = None) -> Any:
    return get_computed_blocks(self, request, request.num_tokens)


STALE = "prefix_soundness eviction_complete error_contract"
free_blocks = vllm.pool.BlockPool.free_blocks
hash_block_tokens = vllm.utils.hash_block_tokens
build_block_stored_event = vllm.pool.BlockPool._build_block_stored_event
get_computed_blocks = vllm.manager.KVCacheManager.get_computed_blocks


@pytest.mark.parametrize(
    ("owner", "name", "broken", "law"),
    [
        (vllm.pool.BlockPool, "touch", touches_without_counting, "accounting eviction_safety error_contract"),
        (vllm.pool.BlockPool, "_maybe_evict_cached_block", evicts_but_stays_findable, STALE + " event_consistency"),
        (vllm.pool.BlockPool, "free_blocks", frees_once_too_often, "accounting eviction_safety"),
        (
            vllm.single_type.SingleTypeKVCacheManager,
            "_get_num_evictable_blocks",
            classmethod(counts_no_evictable),
            "error_contract",
        ),
        (vllm.pool.BlockPool, "_emit_block_removed_events", removes_silently, "event_consistency"),
        (vllm.pool.BlockPool, "_build_block_stored_event", stores_under_no_parent, "event_consistency"),
        (vllm.pool.BlockPool, "_build_block_stored_event", stores_the_tokens_before, "event_consistency"),
        (vllm.utils, "hash_block_tokens", hashes_without_parent, "prefix_soundness event_consistency"),
        (vllm.utils, "generate_block_hash_extra_keys", hashes_without_keys, STALE + " event_consistency"),
        (vllm.manager.KVCacheManager, "get_computed_blocks", hits_the_last_token, "hit_bounds error_contract"),
    ],
)
def test_a_broken_manager_is_caught(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Any, law: str
) -> None:
    monkeypatch.setattr(owner, name, broken)
    failure = walk(model_of("kv_manager"), partial(target.make), 20_000).failure
    assert failure is not None
    assert failure.law in law.split()


components = pytest.importorskip("kvlockstep.impl.engines.vllm.block_pool", exc_type=ImportError)


def test_the_block_pool_holds_every_law() -> None:
    outcome = walk(model_of("block_pool"), components.VllmBlockPool, 15_000)
    assert outcome.failure is None
    assert {goal.id for goal in model_of("block_pool").goals} <= outcome.reach.keys()


def frees_in_any_order(self: Any, blocks: Any) -> None:
    free_blocks(self, sorted(blocks, key=lambda block: block.block_id))


def finds_the_newest(self: Any, key: Any) -> Any:
    blocks = self._cache.get(key)
    return list(blocks.values())[-1] if isinstance(blocks, dict) else blocks


@pytest.mark.parametrize(
    ("owner", "name", "broken", "law"),
    [
        (vllm.pool.BlockPool, "free_blocks", frees_in_any_order, "eviction_order"),
        (
            vllm.pool.BlockPool,
            "_maybe_evict_cached_block",
            evicts_but_stays_findable,
            "content_equality prefix_soundness",
        ),
        (vllm.pool.BlockHashToBlockMap, "get_one_block", finds_the_newest, "agreement"),
    ],
)
def test_a_broken_pool_is_caught(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Any, law: str) -> None:
    monkeypatch.setattr(owner, name, broken)
    failure = walk(model_of("block_pool"), components.VllmBlockPool, 20_000).failure
    assert failure is not None
    assert failure.law in law.split()


schedulers = pytest.importorskip("kvlockstep.impl.engines.vllm.scheduler", exc_type=ImportError)
SCHEDULERS = ("make", "make_priority", "make_async", "make_async_priority", "make_v1", "make_long", "make_uncached")


@pytest.mark.parametrize("name", SCHEDULERS)
def test_random_episodes_of_the_scheduler_hold_every_law(name: str) -> None:
    outcome = walk(model_of("kv_scheduler"), getattr(schedulers, name), 5_000)
    assert outcome.failure is None
    wanted = {"preempt", "resume", "chunk", "mixed", "late_token", "ended_by_token", "reset_live", "drain"}
    wanted |= {"hit", "shared", "eviction"} if name != "make_uncached" else set()
    wanted |= {"overlap", "preempt_in_flight"} if "async" in name else set()
    assert wanted <= outcome.reach.keys()


def test_the_known_divergences_are_still_there() -> None:
    folder = Path(schedulers.__file__).parent
    for known in tomllib.loads((folder / "known.toml").read_text())["divergence"]:
        trace = load_trace(folder / known["trace"])
        with Watchdog(5.0).watching() as watchdog:
            factory = resolve(known["contract"], known["target"]).factory
            failure = run_ops(model_of(known["contract"]), factory, trace.scope, trace.ops, watchdog)
        assert failure is not None
        assert failure.law == known["law"]


def test_without_the_hashes_of_the_victim_the_divergence_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows the cause: what the victim published and did not compute."""
    preempt = vllm.scheduler.Scheduler._preempt_request

    def preempts_and_forgets(self: Any, request: Any, *args: Any, **options: Any) -> None:
        blocks = self.kv_cache_manager.get_block_ids(request.request_id)[0]
        computed = request.num_computed_tokens // self.block_size
        self.kv_cache_manager.evict_blocks(set(blocks[computed:]))
        preempt(self, request, *args, **options)

    monkeypatch.setattr(vllm.scheduler.Scheduler, "_preempt_request", preempts_and_forgets)
    assert walk(model_of("kv_scheduler"), schedulers.make_priority_long, 20_000).failure is None


def preempts_without_freeing(self: Any, request: Any) -> None:
    if request.is_finished():
        free_request_blocks(self, request)
    else:
        self.kv_cache_manager.pop_blocks_for_free(request)


def resumes_nobody(self: Any, request: Any, *args: Any, **options: Any) -> None:
    preempt_request(self, request, *args, **options)
    self.waiting.remove_request(request)


def forgets_the_output(self: Any, request: Any, *args: Any, **options: Any) -> None:
    del request._all_token_ids[request.num_prompt_tokens :]
    preempt_request(self, request, *args, **options)


free_request_blocks = vllm.scheduler.Scheduler._free_request_blocks
preempt_request = vllm.scheduler.Scheduler._preempt_request


@pytest.mark.parametrize(
    ("name", "broken", "law"),
    [
        ("_free_request_blocks", preempts_without_freeing, "accounting leak_freedom error_contract"),
        ("_preempt_request", resumes_nobody, "one_queue"),
        ("_preempt_request", forgets_the_output, "sampling input_tokens continuity"),
    ],
)
def test_a_broken_scheduler_is_caught(monkeypatch: pytest.MonkeyPatch, name: str, broken: Any, law: str) -> None:
    monkeypatch.setattr(vllm.scheduler.Scheduler, name, broken)
    failure = walk(model_of("kv_scheduler"), schedulers.make, 20_000).failure
    assert failure is not None
    assert failure.law in law.split()
