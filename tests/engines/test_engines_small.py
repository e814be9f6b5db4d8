"""The adapters of nano-vllm, mini-sglang, LightLLM and LMDeploy under kv_manager."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from computing import compute
from driving import walk

from kvlockstep.core.trace import load_trace
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.registry import model_of

ENGINES = Path(importlib.import_module("kvlockstep.impl.engines").__path__[0])
FACTORIES = {"nano_vllm": "make", "mini_sglang": "make_repaired", "lightllm": "make", "lmdeploy": "make"}
BLOCKS, SIZE = 4, 2
NANO = "nanovllm.engine.block_manager"
MINI = "minisgl.kvcache.radix_cache"
LIGHT = "lightllm.server.router.dynamic_prompt.radix_cache"
TRIE = "lmdeploy.pytorch.paging.block_trie"


def adapter_of(engine: str) -> Any:
    reason = f"{engine} is not on this machine: see --engine-path"
    return pytest.importorskip(f"kvlockstep.impl.engines.{engine}.manager", reason=reason, exc_type=ImportError)


@pytest.fixture(params=FACTORIES)
def make(request: pytest.FixtureRequest) -> Any:
    return getattr(adapter_of(request.param), FACTORIES[request.param])


def play(trace_name: str, factory: Any) -> Divergence | None:
    """Plays a known trace on a factory; answers what diverges."""
    (path,) = ENGINES.glob(f"*/{trace_name}")
    trace = load_trace(path)
    model = model_of(trace.contract)(trace.scope, factory)
    try:
        for op in trace.ops:
            model.step(op)
    except Divergence as divergence:
        return divergence
    return None


def test_the_pool_is_exactly_what_was_asked_for(make: Any) -> None:
    adapter = make(5, 16)
    assert adapter.version != "unknown"
    assert adapter.total == adapter.avail() == adapter.free_now() == 80
    assert len(set(adapter.free_slots())) == 80


def test_a_finished_prompt_is_hit_up_to_its_last_token(make: Any) -> None:
    adapter = make(BLOCKS, SIZE)
    assert compute(adapter, "a", [1, 2, 3, 4]) == 0
    before = adapter.slots("a")
    adapter.finish("a")
    cached = compute(adapter, "b", [1, 2, 3, 4])
    assert cached == (3 if adapter.block_size == 1 else 2)
    assert adapter.slots("b")[:cached] == before[:cached]


def test_a_refused_admission_holds_nothing(make: Any) -> None:
    adapter = make(BLOCKS, SIZE)
    compute(adapter, "a", [1, 2, 3])
    before = adapter.avail()
    assert adapter.admit("b", [1, 2, 7, 8, 9, 9, 9, 9], None, 8) is None
    assert adapter.avail() == before
    adapter.finish("a")
    assert adapter.avail() == adapter.total


def test_a_preempted_request_comes_back_with_all_its_tokens(make: Any) -> None:
    adapter = make(BLOCKS, SIZE)
    compute(adapter, "a", [1, 2, 3])
    adapter.append("a", 4)
    assert adapter.reserve("a", 1)
    adapter.launch()
    adapter.commit("a", 1)
    adapter.append("a", 5)
    adapter.preempt("a")
    assert adapter.avail() == adapter.total
    assert compute(adapter, "a", [1, 2, 3, 4, 5]) == 4, "what was computed is still cached"
    adapter.finish("a")
    assert adapter.avail() == adapter.total


WANTED = {"hit", "full_prompt_hit", "eviction", "physical_reuse", "twins", "admit_into_step", "refused_admission"}
WANTED |= {"refused_reserve", "chunk", "abort_in_prefill", "launched_abort", "preempt", "resume", "reverse_commits"}


def test_random_episodes_hold_every_law(make: Any) -> None:
    outcome = walk(model_of("kv_manager"), make, 8_000)
    assert outcome.failure is None
    assert outcome.reach.keys() >= WANTED


def test_a_block_of_nano_vllm_has_two_tokens_at_least() -> None:
    adapter = adapter_of("nano_vllm").make(3, 1)
    assert (adapter.block_size, adapter.total) == (2, 6)


def test_lightllm_frees_the_slots_of_rejected_drafts() -> None:
    adapter = adapter_of("lightllm").make(8, 1)
    compute(adapter, "a", [1, 2])
    adapter.append("a", 3)
    assert adapter.reserve("a", 4)
    adapter.launch()
    assert len(adapter.slots("a")) == 6
    adapter.append("a", 4)
    adapter.commit("a", 2)
    assert (len(adapter.slots("a")), adapter.avail()) == (4, 4)


def test_lmdeploy_keeps_adapters_apart() -> None:
    adapter = adapter_of("lmdeploy").make(8, SIZE)
    for rid, key in (("a", 0), ("b", 1), ("c", None), ("d", 0)):
        assert adapter.admit(rid, [1, 2, 3], key, 3) == (2 if rid == "d" else 0)


def test_a_preempted_request_of_lmdeploy_keeps_its_blocks_until_they_are_needed() -> None:
    adapter = adapter_of("lmdeploy").make(BLOCKS, SIZE)
    compute(adapter, "a", [1, 2, 3])
    adapter.append("a", 4)
    adapter.preempt("a")
    assert adapter.free_now() == 2 * SIZE < adapter.avail() == adapter.total
    assert compute(adapter, "b", [9] * 7) == 0


@pytest.mark.parametrize(
    ("engine", "trace", "factory", "law"),
    [
        ("mini_sglang", "mini-sglang-unmapped-duplicates.jsonl", "make", "eviction_safety"),
        ("mini_sglang", "mini-sglang-pages-overcommitted.jsonl", "make", "error_contract"),
        ("lmdeploy", "lmdeploy-chunk-preempted.jsonl", "make_keeping_chunks", "prefix_soundness"),
    ],
)
def test_known_divergences_are_still_there(engine: str, trace: str, factory: str, law: str) -> None:
    target = adapter_of(engine)
    divergence = play(trace, getattr(target, factory))
    assert divergence is not None
    assert divergence.law == law
    assert play(trace, getattr(target, FACTORIES[engine])) is None


def test_mini_sglang_overcommits_its_pages_in_its_own_prefill_manager() -> None:
    """Two prompts of 5 tokens with one of output each, in three pages of 4: no adapter stands between."""
    target = adapter_of("mini_sglang")
    adapter = target.make(3, 4)
    idle = SimpleNamespace(inflight_tokens=0)
    manager = target.prefill.PrefillManager(adapter._cache, adapter._table, idle)
    for number in range(2):
        params = target.core.SamplingParams(max_tokens=1)
        ids = target.torch.full((5,), number, dtype=target.torch.int32)
        manager.add_one_req(SimpleNamespace(uid=number, input_ids=ids, sampling_params=params))
    with target.pageable():
        batch = manager.schedule_next_batch(100)
        assert len(batch.reqs) == 2
        with pytest.raises(AssertionError, match="Cannot evict"):
            adapter._cache.allocate_paged(batch.reqs)


def test_lmdeploy_with_room_ahead_publishes_too_late() -> None:
    target, trace = adapter_of("lmdeploy"), "lmdeploy-published-late.jsonl"
    divergence = play(trace, target.make_room_ahead)
    assert divergence is not None
    assert divergence.law == "write_isolation"
    assert play(trace, partial(target.make, ahead=2)) is None


def test_lmdeploy_gives_a_resumed_request_the_block_of_another_in_its_own_scheduler() -> None:
    """Two equal prompts with equal answers, in five blocks, defaults else; no adapter stands between."""
    target = adapter_of("lmdeploy")
    limits = target.config.SchedulerConfig(2, target.UNLIMITED)
    cache = target.config.CacheConfig(2, 64, 0, 5, enable_prefix_caching=True)
    meta = target.messages.SequenceMeta(64, strategy=target.strategy.ARSequenceStrategy())
    scheduler, ahead = target.paging.Scheduler(limits, cache, meta), limits.prefill_interval
    for number in range(2):
        scheduler.add_session(number).add_sequence(np.zeros(60, dtype=np.int64))
    first, second = running = scheduler.schedule(is_prefill=True, prealloc_size=ahead).running
    while len(running) == 2:
        scheduler.activate_seqs(running)
        granted = scheduler.schedule_running(running, num_required_tokens=1, prealloc_size=ahead)
        running = [seq for seq, has_room in zip(running, granted, strict=True) if has_room]
        for seq in running:
            seq.update_token_ids(np.array([0]), mode=target.messages.UpdateTokenMode.DECODE)
    assert (first.num_all_ids, second.num_all_ids) == (128, 129)
    assert scheduler.block_manager.get_num_free_gpu_blocks() == 0
    assert scheduler.schedule(is_prefill=True, prealloc_size=ahead).running[0] is first
    table, of_second = (scheduler.block_manager.get_block_table(seq).tolist() for seq in (first, second))
    assert table[128 // 64] == of_second[0]


def keeps_the_hash_of_a_reused_block(_original: Any, manager: Any) -> int:
    """nano-vllm#163."""
    block = manager.blocks[manager.free_block_ids.popleft()]
    block.reset()
    manager.used_block_ids.add(block.block_id)
    return int(block.block_id)


def counts_no_second_owner(original: Any, manager: Any, seq: Any, cached_blocks: int) -> None:
    original(manager, seq, cached_blocks)
    for block in seq.block_table:
        manager.blocks[block].ref_count = 1


def locks_from_the_parent(original: Any, tree: Any, handle: Any, unlock: bool = False) -> None:
    """mini-sglang#52."""
    if not handle.node.is_root():
        original(tree, type(handle)(handle.cached_len, handle.node.parent), unlock)


def splits_without_its_references(original: Any, node: Any, length: int) -> Any:
    above = original(node, length)
    counter = "ref_count" if hasattr(above, "ref_count") else "ref_counter"
    setattr(above, counter, 0)
    return above


def finds_nothing_there(original: Any, tree: Any, key: Any, value: Any) -> int:
    original(tree, key, value)
    return 0


def keeps_replaced_blocks(original: Any, kv: Any, node: Any, ref_blocks: list[int], free_blocks: list[int]) -> None:
    original(kv, node, ref_blocks, [])


def matches_without_a_reference(original: Any, trie: Any, seq: Any) -> None:
    owned = len(seq.logical_blocks)
    original(trie, seq)
    trie.allocator.add_ref_count(seq.logical_blocks[owned:], -1)


@pytest.mark.parametrize(
    ("engine", "owner", "method", "broken", "law"),
    [
        ("nano_vllm", f"{NANO}:BlockManager", "_allocate_block", keeps_the_hash_of_a_reused_block, "prefix_soundness"),
        ("nano_vllm", f"{NANO}:BlockManager", "allocate", counts_no_second_owner, "accounting"),
        (
            "mini_sglang",
            f"{MINI}:RadixPrefixCache",
            "lock_handle",
            locks_from_the_parent,
            "accounting content_equality",
        ),
        (
            "mini_sglang",
            f"{MINI}:RadixTreeNode",
            "split_at",
            splits_without_its_references,
            "accounting error_contract eviction_safety",
        ),
        (
            "lightllm",
            f"{LIGHT}:TreeNode",
            "split_node",
            splits_without_its_references,
            "accounting error_contract eviction_safety leak_freedom",
        ),
        ("lightllm", f"{LIGHT}:RadixCache", "insert", finds_nothing_there, "error_contract leak_freedom accounting"),
        (
            "lmdeploy",
            f"{TRIE}.kv_lifecycle:KVBlockLifecycle",
            "commit_path_extension",
            keeps_replaced_blocks,
            "leak_freedom accounting",
        ),
        ("lmdeploy", f"{TRIE}.trie:BlockTrie", "match", matches_without_a_reference, "accounting atomicity"),
    ],
)
def test_a_broken_engine_is_caught(
    monkeypatch: pytest.MonkeyPatch, engine: str, owner: str, method: str, broken: Any, law: str
) -> None:
    target = adapter_of(engine)
    spoiled = resolve_name(owner)
    original = getattr(spoiled, method)
    monkeypatch.setattr(spoiled, method, lambda *args, **options: broken(original, *args, **options))
    failure = walk(model_of("kv_manager"), getattr(target, FACTORIES[engine]), 20_000).failure
    assert failure is not None
    assert failure.law in law.split()
