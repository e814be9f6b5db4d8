"""kv_manager with groups on the Mamba component of SGLang (0.5.23): full attention and recurrent states in their slots.

The calls are those of the adapter with one group (manager.py). Pages have one token, which the engine asks for without
its extra buffer. A request has one slot for its state, which each step rewrites. A hit is copied into it before the
first forward. Behind a prompt or chunk the state is copied into a fresh slot, which the tree gets; a request that ends
gives the tree its own. The tree keeps the state that a running request's path ends on. So a request has up to three
slots, and the engine runs a third as many requests as there are slots.
Source: sglang/srt/mem_cache, memory_pool.py (HybridReqToTokenPool), allocator/mamba.py and
unified_cache/components/mamba.py, and managers/scheduler.py, beside those of manager.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from kvlockstep.impl.engines.sglang.manager import SGLangKVManager
from kvlockstep.impl.engines.sglang.modules import configure
from kvlockstep.reference.kv_manager.groups.contract import Group, Step

# The names of the engine that the adapter with one group has loaded.
sglang: Any = import_module(SGLangKVManager.__module__)
pools: Any = import_module("sglang.srt.mem_cache.memory_pool")
component: Any = import_module("sglang.srt.mem_cache.unified_cache.components.mamba")
slot_allocator = import_module("sglang.srt.mem_cache.allocator.mamba")

sizing: Any = import_module("sglang.srt.mem_cache.allocation_sizing")
context: Any = import_module("sglang.srt.runtime_context")
policies: Any = import_module("sglang.srt.managers.schedule_policy")

FULL, STATES = "kv", "states"
STATE = sglang.ComponentType.MAMBA
SLOTS_PER_REQUEST = 3
# Without the extra buffer each position may have a checkpoint.
PLAIN: dict[str, Any] = {
    "enable_mamba_extra_buffer": False,
    "enable_mamba_extra_buffer_lazy": False,
    "mamba_cache_chunk_size": 1,
    "mamba_track_interval": 1,
}


def chunk_size() -> int:
    """The engine reads it from the model's configuration, and its page size."""
    return int(context.get_exec().mamba.mamba_cache_chunk_size)


readers = [context, component, sglang.batches, policies]
with suppress(ImportError):
    readers.append(import_module("sglang.srt.mem_cache.rust_tree_core.adapter"))
for reader in readers:
    reader.mamba_cache_chunk_size = chunk_size


@contextmanager
def configured(settings: Mapping[str, Any]) -> Iterator[None]:
    """The engine runs with these settings for states."""
    configure({"exec": {"mamba": settings}})
    try:
        yield
    finally:
        configure({"exec": {"mamba": PLAIN}})


class StateLog:
    """The engine's pool of states as far as the cache calls it: copies, as the judge is to make them."""

    replayssm_write_pos = replayssm_spec_write_pos = None

    def __init__(self, size: int) -> None:
        self.size = size
        self.copied: list[tuple[str, int, int]] = []

    def copy_from(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.copied += [(STATES, s, t) for s, t in zip(source.tolist(), target.tolist(), strict=True)]


class Rows(pools.HybridReqToTokenPool):  # type: ignore[misc]
    """The engine's request rows with states, without its tensors of states.

    `extra` slots for checkpoints: two with `overlap`, or one of them only when needed with `lazy`.
    """

    def __init__(
        self, requests: int, width: int, states: int, extra: bool = False, overlap: bool = False, lazy: bool = False
    ) -> None:
        sglang.ReqToTokenPool.__init__(self, requests, width, "cpu", enable_memory_saver=False)
        self.mamba_ping_pong_track_buffer_size = sizing.get_mamba_tracking_slots(extra_buffer=True, overlap=overlap)
        self.mamba_initial_tracking_slots = sizing.get_mamba_tracking_slots(
            extra_buffer=extra, overlap=overlap, lazy=lazy
        )
        self.enable_mamba_extra_buffer, self.enable_mamba_extra_buffer_lazy = extra, lazy
        self.layer_transfer_counter = self.mamba_ckpt_pool = None
        self.short_conv_pool = self.ngram_pool = SimpleNamespace(clear=lambda: None)
        self.mamba_pool = StateLog(states)
        self.mamba_allocator = slot_allocator.MambaSlotAllocator(states, "cpu")
        rows = self.req_to_token.shape[0]
        self.req_index_to_mamba_index_mapping = torch.zeros(rows, dtype=torch.int32)
        self.req_index_to_mamba_ping_pong_track_buffer_mapping = torch.zeros(
            (rows, self.mamba_ping_pong_track_buffer_size), dtype=torch.int64
        )


def memory(
    rows: Rows, allocator: Any, block_size: int, core: str | None, *more: Any, **options: Any
) -> tuple[Rows, Any, Any]:
    """The rows, an allocator, and the tree over both, with `more` components."""
    options["enable_mamba_extra_buffer"] = rows.enable_mamba_extra_buffer
    return rows, allocator, sglang.tree_over(rows, allocator, block_size, core, *more, STATE, **options)


class StatePools:
    """What an adapter says of the two pools."""

    block_size: int
    _rows: Any
    _allocator: Any
    _tree: Any

    def avail(self, pool: str = FULL) -> int:
        if pool == STATES:
            return self.free_now(pool) + int(self._tree.mamba_evictable_size())
        return self.free_now(pool) + int(self._tree.full_evictable_size()) // self.block_size

    def free_now(self, pool: str = FULL) -> int:
        if pool == STATES:
            return int(self._rows.mamba_allocator.available_size())
        return int(self._allocator.available_size()) // self.block_size

    def free_slots(self, pool: str = FULL) -> Iterable[int] | None:
        free = self._rows.mamba_allocator.free_slots if pool == STATES else self._allocator.get_all_free_pages()
        blocks: list[int] = free.tolist()
        return blocks


class SGLangStateManager(StatePools, SGLangKVManager):
    """Full attention in `slots` pages of one token, and states for `running` requests at a time."""

    copies_at_admit = copies_at_commit = True

    def __init__(self, slots: int, core: str, running: int, **options: Any) -> None:
        self.groups = Group("full", 1), Group("state", 1, pool=STATES, units=SLOTS_PER_REQUEST)
        self.pools = {FULL: slots, STATES: SLOTS_PER_REQUEST * running}
        self._most = running
        super().__init__(slots, 1, core, **options)
        self.event_listener = None

    def _memory(  # type: ignore[override]
        self, blocks: int, block_size: int, core: str, requests: int, need_sort: bool, **options: Any
    ) -> tuple[Any, ...]:
        rows = Rows(requests, blocks + block_size, self.pools[STATES])
        return memory(rows, sglang.pages(blocks, block_size, need_sort), block_size, core, **options)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        """Asks the cache only if one more request may run."""
        return super().admit(rid, tokens, extra_key, n) if len(self._running) < self._most else None

    def copies(self) -> list[tuple[Any, ...]]:
        """States that hits are copied from, and checkpoints that the last commit has made."""
        log = self._rows.mamba_pool
        due: list[tuple[Any, ...]] = log.copied
        log.copied = []
        for req in self._adder.can_run_list if self._adder is not None else ():
            if req.kv.mamba_cow_src_index is not None:
                due.append((STATES, int(req.kv.mamba_cow_src_index), int(req.kv.mamba_pool_idx)))
            req.kv.mamba_cow_src_index, req.kv.mamba_needs_clear = None, False
        return due

    def launch(self) -> None:
        scheduled = [*self._chunks, *(self._adder.can_run_list if self._adder is not None else ())]
        self._starts = {req.rid: req.prefix_len for req in scheduled}
        self._ends = {req.rid: req.extend_end for req in scheduled}
        for req in self._decodes:
            self._starts[req.rid] = int(req.kv.kv_committed_len)
            self._ends[req.rid] = self._starts[req.rid] + 1
        super().launch()

    def state(self, rid: str, group: int) -> Step:
        own = int(self._running[rid].kv.mamba_pool_idx)
        return Step(own if self._starts[rid] else None, [(self._ends[rid], own)])

    def slots(self, rid: str, group: int = 0) -> list[int]:
        return super().slots(rid)

    def held(self, rid: str, group: int) -> set[int] | None:
        """Which state the tree keeps for a request, only the tree knows."""
        return set(super().slots(rid)) if group == 0 else None

    def evict_all(self) -> None:
        sizes = self._tree.full_evictable_size(), self._tree.mamba_evictable_size()
        self._tree.evict(sglang.EvictParams(num_tokens=sizes[0], mamba_num=sizes[1]))


configure({"exec": {"mamba": PLAIN}})


def make_state_python(blocks: int, block_size: int) -> SGLangStateManager:
    """Full attention and a state, with the core in Python. The slots are those of `blocks` blocks."""
    return SGLangStateManager(blocks * block_size, "python", max(2, blocks // 2))


def make_state_rust(blocks: int, block_size: int) -> SGLangStateManager:
    """Full attention and a state, with the compiled core. The slots are those of `blocks` blocks."""
    return SGLangStateManager(blocks * block_size, "rust", max(2, blocks // 2))
