"""kv_manager with groups on the sliding window of SGLang (0.5.23): full attention and a window, in pools of their own.

The calls are those of the adapter with one group (manager.py). The table of the window is the engine's mapping of full
slots to window slots. A window slides when its request decodes, before the decodes of the step are allocated; behind
a chunk the tree keeps locked what the next one reads. The lock of a request covers whole nodes of the tree, or only
the end of its prefix, which nobody can tell from outside: `held` has no answer for the window.
A chunk shrinks to what the pools have. The engine's budget counts the decodes of a mixed step in the full pool only,
and `check_decode_mem` is asked again behind it; here they count in both.
Source: sglang/srt/mem_cache, allocator/swa.py, prefill_budget.py, unified_cache/components/swa.py and
managers/schedule_batch.py (maybe_evict_swa), beside those of manager.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import torch

from kvlockstep.impl.engines.sglang.manager import SGLangKVManager
from kvlockstep.reference.kv_manager.groups.contract import Admitted, Group

# The names of the engine that the adapter with one group has loaded.
sglang: Any = import_module(SGLangKVManager.__module__)
swa: Any = import_module("sglang.srt.mem_cache.allocator.swa")
environment: Any = import_module("sglang.srt.environ")
FULL, WINDOW = "kv", "window"


class MappedPool(swa.BaseSWAKVPool):  # type: ignore[misc]
    """The engine's pool as far as the allocator calls it: the mapping, and no tensors. The judge owns the KV."""

    def __init__(self) -> None:
        pass

    def register_mapping(self, full_to_swa_index_mapping: torch.Tensor) -> None:
        self.full_to_swa_index_mapping = full_to_swa_index_mapping

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        return self.full_to_swa_index_mapping[kv_indices]


MappedPool.__abstractmethods__ = frozenset()


def pages(pools: Mapping[str, int], block_size: int, need_sort: bool = False) -> Any:
    """An allocator of the pages of both pools."""
    full, window = (pools[pool] * block_size for pool in (FULL, WINDOW))
    return swa.SWATokenToKVPoolAllocator(full, window, block_size, torch.int64, "cpu", MappedPool(), need_sort)


def memory(
    pools: Mapping[str, int],
    block_size: int,
    core: str | None,
    requests: int,
    reach: int,
    need_sort: bool = False,
    **options: Any,
) -> tuple[Any, Any, Any]:
    """The rows of `requests` requests, an allocator of both `pools` of pages, and the tree over both."""
    rows = sglang.ReqToTokenPool(requests, (pools[FULL] + 1) * block_size, "cpu", enable_memory_saver=False)
    allocator = pages(pools, block_size, need_sort)
    # The engine does not count the token itself.
    options["sliding_window_size"] = reach - 1
    return rows, allocator, sglang.tree_over(rows, allocator, block_size, core, sglang.ComponentType.SWA, **options)


def pages_of_window(window: int, interval: int, block_size: int, chunks: int, width: int = 1) -> int:
    """The pages of a window of `window` tokens behind each token, for a request that decodes and one in chunks.

    For each of them what the engine reckons with, and the window that a hit keeps; `chunks` are tokens in flight, and
    a decode has `width` tokens with its drafts.
    """
    decode = 2 * width if width > 1 else block_size
    return -(-(2 * (2 * window + interval * width + 2 * block_size + decode) + chunks) // block_size)


def sliding_every(tokens: int) -> Any:
    """The context in which the window of a decode slides when it has so many tokens to leave."""
    return environment.envs.SGLANG_SWA_EVICTION_INTERVAL.override(tokens)


class WindowPools:
    """What an adapter says of the two pools. `slots` and `held` are told by the rows of full attention."""

    block_size: int
    _allocator: Any
    _tree: Any

    def avail(self, pool: str = FULL) -> int:
        evictable = self._tree.full_evictable_size() if pool == FULL else self._tree.swa_evictable_size()
        return self.free_now(pool) + int(evictable) // self.block_size

    def free_now(self, pool: str = FULL) -> int:
        return int(self._of(pool).available_size()) // self.block_size

    def free_slots(self, pool: str = FULL) -> Iterable[int] | None:
        pages: list[int] = self._of(pool).get_all_free_pages().tolist()
        return pages

    def _in_group(self, full: list[int], group: int) -> list[int | None]:
        """The slots in a group that belong to these of full attention."""
        if group == 0:
            return list(full)
        return [slot or None for slot in self._allocator.full_to_swa_index_mapping[full].tolist()]

    def _held(self, full: list[int], group: int) -> set[int] | None:
        """Which part of a window is locked, only the tree knows."""
        return {slot // self.block_size for slot in full} if group == 0 else None

    def _of(self, pool: str) -> Any:
        return self._allocator.full_attn_allocator if pool == FULL else self._allocator.swa_attn_allocator


class SGLangWindowManager(WindowPools, SGLangKVManager):
    """Full attention in `blocks` pages, and a window of `reach` positions in `window_blocks` pages.

    The window of a decode slides when it has `interval` tokens to leave.
    """

    cuts_chunks = True

    def __init__(
        self,
        blocks: int,
        block_size: int,
        core: str,
        reach: int,
        window_blocks: int,
        interval: int = 1,
        **options: Any,
    ) -> None:
        self.groups = Group("full", block_size), Group("window", block_size, reach=reach, pool=WINDOW)
        self.pools = {FULL: blocks, WINDOW: window_blocks}
        super().__init__(blocks, block_size, core, **options)
        self._interval = interval
        self.event_listener = None
        # The window's part of a prompt is rounded up to pages before a page is added.
        self.output_reserve = 2 * block_size

    def _memory(  # type: ignore[override]
        self, blocks: int, block_size: int, core: str, requests: int, need_sort: bool, **options: Any
    ) -> tuple[Any, Any, Any]:
        return memory(self.pools, block_size, core, requests, self.groups[1].reach, need_sort, **options)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | Admitted | None:  # type: ignore[override]
        hit = super().admit(rid, tokens, extra_key, n)
        if hit is None:
            return None
        taken = self._running[rid].extend_len
        return hit if taken == min(n, len(tokens) - hit) else Admitted(hit, taken)

    def reserve(self, rid: str, n: int) -> int:  # type: ignore[override]
        """How many of the tokens are scheduled, 0 for none."""
        if not super().reserve(rid, n):
            return 0
        req = self._running[rid]
        return int(req.extend_len) if req in self._chunks else n

    def launch(self) -> None:
        # By default the engine waits for 128 tokens, more than an episode has.
        with sliding_every(self._interval):
            super().launch()

    def slots(self, rid: str, group: int = 0) -> list[int | None]:  # type: ignore[override]
        return self._in_group(super().slots(rid), group)

    def held(self, rid: str, group: int) -> set[int] | None:
        return self._held(super().slots(rid), group)

    def evict_all(self) -> None:
        sizes = self._tree.full_evictable_size(), self._tree.swa_evictable_size()
        self._tree.evict(sglang.EvictParams(num_tokens=sizes[0], swa_num_tokens=sizes[1]))

    def _prefill_adder(self, due: int) -> Any:
        adder = super()._prefill_adder(due)
        adder.memory_budget.swa_offset += due
        return adder

    def _schedule_chunk(self, req: Any, n: int) -> bool:
        adder = self._prefill_adder(self._due)
        adder.rem_chunk_tokens = n
        req.init_next_round_input()
        adder.add_chunked_req(req)
        self._chunks += adder.can_run_list
        if req not in adder.can_run_list:
            return False
        self._due += self._in_pages(req.extend_end) - self._in_pages(req.prefix_len)
        return True


def make_window_python(blocks: int, block_size: int) -> SGLangWindowManager:
    """Full attention and a window of 4 positions, in a scarcer pool, with the core in Python."""
    return SGLangWindowManager(blocks, block_size, "python", 4, max(4, blocks * 2 // 3))


def make_window_wide(blocks: int, block_size: int) -> SGLangWindowManager:
    """Full attention and a window of 7 positions, which slides every 3 tokens, with the compiled core."""
    return SGLangWindowManager(blocks, block_size, "rust", 7, max(8, blocks * 2 // 3), interval=3)


def make_window_rust(blocks: int, block_size: int) -> SGLangWindowManager:
    """Full attention and a window of 4 positions, in a scarcer pool, with the compiled core."""
    return SGLangWindowManager(blocks, block_size, "rust", 4, max(4, blocks * 2 // 3))
