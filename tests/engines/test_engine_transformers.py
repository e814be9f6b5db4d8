"""The adapter of the paged cache in transformers: what it shares, copies, refuses, evicts, and shows to the judge."""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from driving import walk

from kvlockstep.models.kv_manager import KVManagerModel

missing = (importlib.util.find_spec(name) is None for name in ("torch", "transformers"))
pytestmark = pytest.mark.skipif(any(missing), reason="it is not installed: pip install 'kvlockstep[engines]'")

BLOCKS, SIZE = 4, 2
TARGET = "kvlockstep.impl.engines.transformers.manager"
ALLOCATORS = "transformers.generation.continuous_batching.cache_allocators"


def target() -> Any:
    """The module is imported by the first test: with torch._dynamo it takes all workers seconds, and forks longer."""
    return importlib.import_module(TARGET)


def make(**kwargs: Any) -> Any:
    return target().make(BLOCKS, SIZE, **kwargs)


tensors_or_not = pytest.mark.parametrize("tensors", [True, False])


def run(adapter: Any, rid: str, tokens: list[int]) -> int | None:
    """Admits a whole prompt and computes it: stamp 100 + position in every slot."""
    cached: int | None = adapter.admit(rid, tokens, None, len(tokens))
    if cached is not None:
        adapter.launch()
        if adapter.memory is not None:
            positions = range(cached, len(tokens))
            adapter.memory.write([adapter.slots(rid)[p] for p in positions], [100 + p for p in positions])
        adapter.commit(rid, len(tokens) - cached)
    return cached


def stamps(adapter: Any, rid: str, length: int) -> list[int]:
    read: list[int] = adapter.memory.read(adapter.slots(rid)[:length])
    return read


@tensors_or_not
@pytest.mark.parametrize(("blocks", "size"), [(3, 1), (4, 2), (5, 16), (7, 3), (2, 512)])
def test_the_pool_is_exactly_what_was_asked_for(blocks: int, size: int, tensors: bool) -> None:
    adapter = target().make(blocks, size, tensors)
    assert adapter.total == adapter.avail() == adapter.free_now() == blocks * size
    assert len(set(adapter.free_slots())) == blocks * size
    assert (adapter.memory is not None) is tensors


@tensors_or_not
def test_a_prefix_is_shared_while_its_owner_lives_and_after(tensors: bool) -> None:
    adapter = make(tensors=tensors)
    assert run(adapter, "a", [1, 2, 3, 4, 5]) == 0
    assert run(adapter, "b", [1, 2, 3, 4]) == 2, "the last block of a whole-block prompt is computed again"
    assert adapter.slots("b")[:2] == adapter.slots("a")[:2]
    assert adapter.blocks("a") == [slot // SIZE for slot in adapter.slots("a")[::SIZE]]
    adapter.finish("a")
    adapter.finish("b")
    assert adapter.free_now() < adapter.avail() == adapter.total
    assert run(adapter, "c", [1, 2, 3, 4, 9]) == 4


def test_equal_blocks_of_one_step_become_one_at_commit() -> None:
    adapter = make()
    assert adapter.admit("a", [1, 2, 3], None, 3) == adapter.admit("b", [1, 2, 3], None, 3) == 0
    adapter.launch()
    before = adapter.slots("b")
    adapter.commit("a", 3)
    adapter.commit("b", 3)
    assert adapter.slots("b")[:2] == adapter.slots("a")[:2] != before[:2]
    assert adapter.slots("b")[2:] == before[2:]
    assert adapter.avail() == (BLOCKS - 3) * SIZE


def test_a_chunk_publishes_only_what_it_computed() -> None:
    adapter = make()
    assert adapter.admit("a", [1, 2, 3, 4, 5], None, 3) == 0
    adapter.launch()
    adapter.commit("a", 3)
    adapter.abort("a")
    assert adapter.admit("b", [1, 2, 3, 4, 5], None, 1) == 2


def test_a_fork_copies_the_open_block_on_the_cache_tensor() -> None:
    adapter = make()
    run(adapter, "a", [1, 2, 3])
    pairs = adapter.fork("a", "child")
    assert pairs is not None
    (source, target_block) = adapter.slots("a")[2:], adapter.slots("child")[2:]
    assert pairs == list(zip(source, target_block, strict=True))
    assert adapter.slots("child")[:2] == adapter.slots("a")[:2]
    assert stamps(adapter, "child", 3) != [100, 101, 102], "nothing is copied yet"
    adapter.memory.copy(pairs)
    assert stamps(adapter, "child", 3) == stamps(adapter, "a", 3) == [100, 101, 102]
    adapter.memory.write(target_block[:1], [7])
    assert stamps(adapter, "a", 3) == [100, 101, 102]


def test_a_fork_without_room_is_refused() -> None:
    adapter = make()
    run(adapter, "a", [1, 2, 3, 4, 5, 6, 7])
    assert adapter.fork("a", "child") is None
    assert adapter.avail() == 0
    adapter.finish("a")
    assert adapter.avail() == adapter.total


@tensors_or_not
def test_a_refused_admission_holds_nothing(tensors: bool) -> None:
    adapter = make(tensors=tensors)
    run(adapter, "a", [1, 2, 3])
    run(adapter, "b", [5, 6])
    before = adapter.avail()
    assert adapter.admit("c", [1, 2, 7, 8, 9, 9, 9], None, 7) is None, "hits a block, and finds no room for the rest"
    assert adapter.avail() == before
    adapter.finish("a")
    adapter.finish("b")
    assert adapter.avail() == adapter.total


def test_what_is_cached_is_evicted_before_a_request_is_refused() -> None:
    adapter = make()
    run(adapter, "a", [1, 2, 3, 4, 5, 6])
    adapter.finish("a")
    run(adapter, "b", [7, 8])
    assert adapter.free_now() == 0
    assert adapter.reserve("b", 1)
    adapter.launch()
    adapter.commit("b", 1)
    assert adapter.admit("c", [1, 2, 3], None, 3) == 0


def test_evict_all_frees_what_nobody_holds() -> None:
    adapter = make()
    run(adapter, "a", [1, 2, 3, 4])
    run(adapter, "b", [1, 2, 9])
    adapter.finish("a")
    assert adapter.free_now() == 1 * SIZE
    adapter.evict_all()
    assert adapter.free_now() == adapter.avail() == 2 * SIZE
    assert run(adapter, "c", [1, 2, 3]) == 2, "held by b, so it stays"


def test_a_preempted_request_comes_back_with_all_its_tokens() -> None:
    adapter = make()
    run(adapter, "a", [1, 2, 3])
    adapter.append("a", 4)
    assert adapter.reserve("a", 1)
    adapter.launch()
    adapter.commit("a", 1)
    adapter.append("a", 5)
    adapter.preempt("a")
    assert adapter.free_now() == adapter.total, "a soft reset caches nothing"
    assert run(adapter, "a", [1, 2, 3, 4, 5]) == 0
    adapter.finish("a")
    assert run(adapter, "b", [1, 2, 3, 4, 9]) == 4


def test_a_resume_may_be_refused_and_tried_again() -> None:
    adapter = make()
    run(adapter, "a", [1, 2, 3])
    adapter.preempt("a")
    run(adapter, "b", [1, 2, 8, 8, 8, 8, 8])
    assert adapter.admit("a", [1, 2, 3], None, 3) is None
    adapter.finish("b")
    assert run(adapter, "a", [1, 2, 3]) == 2


def test_reset_forgets_everything() -> None:
    adapter = make()
    run(adapter, "a", [1, 2, 3])
    run(adapter, "b", [4])
    adapter.preempt("b")
    adapter.reset()
    assert adapter.avail() == adapter.free_now() == adapter.total
    assert run(adapter, "c", [1, 2, 3]) == 0


def test_the_memory_shows_a_plane_that_differs() -> None:
    adapter = make()
    run(adapter, "a", [1, 2, 3])
    slots = adapter.slots("a")
    cache = adapter._allocator
    for layer in cache.layer_indices:
        for plane in cache._kv_token_views[layer]:
            row = adapter.memory._row(slots[1])
            kept = plane[row].clone()
            plane[row, -1, -1] += 1
            assert stamps(adapter, "a", 3) == [100, target().TORN, 102]
            plane[row] = kept
    assert stamps(adapter, "a", 3) == [100, 101, 102]
    adapter.memory.poison(slots[:1])
    assert stamps(adapter, "a", 3) == [-1, 101, 102]


def test_the_memory_copies_whole_blocks_only() -> None:
    adapter = make()
    with pytest.raises(ValueError, match="whole blocks"):
        adapter.memory.copy([(4, 6)])


@pytest.mark.parametrize(("tensors", "steps"), [(True, 1_000), (False, 3_000)])
def test_random_episodes_hold_every_law(tensors: bool, steps: int) -> None:
    outcome = walk(KVManagerModel, partial(target().make, tensors=tensors), steps)
    assert outcome.failure is None
    wanted = {"hit", "eviction", "physical_reuse", "refused_admission", "refused_reserve", "chunk", "preempt", "resume"}
    wanted |= {"launched_abort", "fork", "copies", "reset_live", "evict_all", "reverse_commits", "admit_into_step"}
    assert wanted <= outcome.reach.keys()


def copies_half(_copies: Any) -> Any:
    def copies(self: Any, sources: list[int], targets: list[int]) -> None:
        half = self.bytes_per_block // 2
        for source, target in zip(sources, targets, strict=True):
            self._copy_view[target, :half] = self._copy_view[source, :half]

    return copies


def evicts_but_keeps_the_hash(_evicts: Any) -> Any:
    def evicts(self: Any) -> list[int]:
        evicted = list(self.cached_blocks)
        self.cached_blocks.clear()
        return evicted

    return evicts


def writes_k_into_v(update: Any) -> Any:
    return lambda self, keys, values, *rows: update(self, keys, keys, *rows)


def writes_one_row_off(rows: Any) -> Any:
    def written(self: Any, rid: str, past: int, n: int) -> list[int]:
        return [row ^ 1 if self.tokens_per_page > 1 else row for row in rows(self, rid, past, n)]

    return written


@pytest.mark.parametrize(
    ("owner", "method", "breaks", "law"),
    [
        ("cache_allocator.CacheAllocator", "copy_blocks", copies_half, "content_equality"),
        (
            "cache_allocator.BlockLedger",
            "evict_cached_blocks",
            evicts_but_keeps_the_hash,
            "prefix_soundness content_equality",
        ),
        ("full_attention.FullAttentionCacheAllocator", "update", writes_k_into_v, "content_equality"),
        ("full_attention.FullAttentionCacheAllocator", "get_write_indices", writes_one_row_off, "content_equality"),
    ],
)
def test_a_broken_engine_is_caught(
    monkeypatch: pytest.MonkeyPatch, owner: str, method: str, breaks: Callable[[Any], Any], law: str
) -> None:
    broken = pkgutil.resolve_name(f"{ALLOCATORS}.{owner}")
    monkeypatch.setattr(broken, method, breaks(getattr(broken, method)))
    failure = walk(KVManagerModel, target().make, 5_000).failure
    assert failure is not None
    assert failure.law in law.split()


def test_without_transformers_the_import_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, TARGET, raising=False)
    with pytest.raises(ImportError, match=r"pip install 'kvlockstep\[engines\]'"):
        importlib.import_module(TARGET)
