"""kv_manager with groups on the hybrid KV cache manager of vLLM (0.33.0), with recurrent states (mamba, mode "align").

A table of states has a column for each block of tokens. A step goes on from the column of the step before, and saves in
the column of its last token; the worker moves the state there before the forward. Chunks are cut where a state must be
saved, by the scheduler's own `_mamba_block_aligned_split`. A state that is only saved in this step cannot be hit in it:
the admission is refused then. Source: vllm/v1/worker/mamba_utils.py, preprocess_mamba, beside those of hybrid.py.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.impl.engines.vllm.hybrid import VllmHybridManager, attention_spec
from kvlockstep.reference.kv_manager.groups.contract import Admitted, Group, Step

WHOLE_BUDGET = 1 << 20
# Of a state one admission may take its checkpoint, its own block, and one more for a checkpoint in between.
UNITS = 3


class VllmStateManager(VllmHybridManager):
    """One KVCacheManager with states among its groups, all of one block size. Without drafts.

    With hashes of fewer tokens than a block a hit may end within a block, which is copied before it is written.
    """

    cuts_chunks = defers_twins = True
    tokens_per_decode = 1

    def __init__(
        self,
        blocks: int,
        block_size: int,
        groups: tuple[Group, ...],
        retention: int | None = None,
        hash_size: int | None = None,
        listener: str | None = None,
    ) -> None:
        super().__init__(blocks, block_size, groups, retention, hash_size=hash_size, listener=listener)
        self.chunk_align = block_size
        partial = self.hash_size < block_size and self._manager.coordinator.enable_partial_hash_hits
        self.copies_at_admit = self.copies_at_reserve = partial
        # The fields of a Scheduler that the split reads.
        self._splitter = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=block_size),
            scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
            block_size=block_size,
            hash_block_size=self.hash_size,
            max_num_scheduled_tokens=WHOLE_BUDGET,
            mamba_has_prefill_checkpoint_blocks=False,
            mamba_partial_cache_hit=partial,
            mamba_prefill_checkpoint_alignment=None,
            mamba_shared_prefix_checkpoint=False,
            num_hash_lookahead_tokens=0,
            use_eagle_block_drop=False,
        )

    def spec(self, group: Group) -> Any:
        return group_spec(group)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | Admitted | None:  # type: ignore[override]
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is None or self._scheduled[rid] == min(n, len(tokens) - cached):
            return cached
        return Admitted(cached, self._scheduled[rid])

    def reserve(self, rid: str, n: int) -> int:  # type: ignore[override]
        """How many of the tokens are scheduled, 0 for none."""
        return self._scheduled[rid] if super().reserve(rid, n) else 0

    def state(self, rid: str, group: int) -> Step:
        """The column that the worker copies the state from, and the one that it leaves it in."""
        table, size = self._manager.get_block_ids(rid)[group], self.groups[group].block_size
        stop = self._running[rid].num_computed_tokens
        start = stop - self._scheduled[rid]
        column = self._columns.get((rid, group), (start - 1) // size)
        last = self._columns[rid, group] = -(-stop // size) - 1
        return Step(table[column] if start else None, [(stop, table[last])])

    def finish(self, rid: str) -> None:
        self._forget(rid)
        super().finish(rid)

    def preempt(self, rid: str) -> None:
        self._forget(rid)
        super().preempt(rid)

    def _forget(self, rid: str) -> None:
        for key in [key for key in self._columns if key[0] == rid]:
            del self._columns[key]

    def _forget_requests(self) -> None:
        super()._forget_requests()
        self._columns: dict[tuple[str, int], int] = {}

    def _allocate(self, request: Any, n: int, cached: int = 0, hit: Any = None, **admission: bool) -> bool:
        split = vllm.scheduler.Scheduler._mamba_block_aligned_split
        n = split(self._splitter, request, n, cached)
        return n > 0 and super()._allocate(request, n, cached, hit, **admission)


def group_spec(group: Group, mode: str = "align", drafts: int = 0) -> Any:
    """The engine's own description of a group of any kind; of a state with this mode of the cache and most drafts."""
    if group.kind != "state":
        return attention_spec(group)
    return vllm.interface.MambaSpec(
        block_size=group.block_size,
        shapes=((1,),),
        dtypes=(torch.float16,),
        mamba_cache_mode=mode,
        num_speculative_blocks=drafts,
    )


def make_state(blocks: int, block_size: int, listener: str | None = None) -> VllmStateManager:
    """Full attention and a state."""
    groups = Group("full", block_size), Group("state", block_size, units=UNITS)
    return VllmStateManager(blocks, block_size, groups, listener=listener)


make_state_announced = partial(make_state, listener="counting")


def make_state_sparse(blocks: int, block_size: int) -> VllmStateManager:
    """Full attention and a state, of which the cache keeps the ends of prompts only."""
    groups = Group("full", block_size), Group("state", block_size, units=UNITS)
    return VllmStateManager(blocks, block_size, groups, retention=0)


def make_all(blocks: int, block_size: int) -> VllmStateManager:
    """Full attention, a window of 3 positions and a state."""
    groups = (
        Group("full", block_size),
        Group("window", block_size, reach=3),
        Group("state", block_size, units=UNITS),
    )
    return VllmStateManager(blocks, block_size, groups)


def make_state_fine(blocks: int, block_size: int) -> VllmStateManager:
    """Full attention and a state, with two hashes to a block."""
    groups = Group("full", block_size), Group("state", block_size, units=UNITS)
    return VllmStateManager(blocks, block_size, groups, hash_size=max(1, block_size // 2))


def make_state_retained(blocks: int, block_size: int) -> VllmStateManager:
    """Full attention and a state, of which the cache keeps a checkpoint every two blocks."""
    groups = Group("full", block_size), Group("state", block_size, units=UNITS)
    return VllmStateManager(blocks, block_size, groups, retention=2 * block_size)
