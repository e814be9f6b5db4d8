"""kv_scheduler on vLLM's hybrid schedulers (0.33.0), whose states are also saved within the chunk that ends a prompt.

A layer that can save a state in the middle of its forward says so (`num_prefill_checkpoint_blocks`): those of Mamba2,
GDN and KDA. Then the scheduler does not cut the last chunk of a prompt where a state must be saved. The worker saves
it on the way, in the column before that of the chunk's end. Where it does so it works out by itself, with the engine's
`compute_mamba_prefill_checkpoints`, and has to come to the same as the scheduler.

Source: vllm/model_executor/layers/mamba/checkpoint.py, beside the files of hybrid_scheduler.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.impl.engines.vllm.hybrid import NULL
from kvlockstep.impl.engines.vllm.hybrid_scheduler import FULL, STATE, WINDOW, VllmHybridScheduler
from kvlockstep.reference.kv_manager.groups.contract import Group, Step
from kvlockstep.reference.kv_scheduler.contract import Item

BARE = (
    *vllm.BARE,
    "vllm.model_executor",
    "vllm.model_executor.layers",
    "vllm.model_executor.layers.mamba",
)

with without_the_rest(vllm.ENGINE, BARE, vllm.STUBS):
    checkpoint: Any = import_module("vllm.model_executor.layers.mamba.checkpoint")


class PrefillCheckpointScheduler(VllmHybridScheduler):
    """A hybrid scheduler whose worker saves a state within the chunk that ends a prompt, behind any token."""

    def _spec(self, group: Group) -> Any:
        spec = super()._spec(group)
        if group.kind != "state":
            return spec
        return replace(spec, num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=1)

    def _step(self, g: int, item: Item) -> Step:
        step = super()._step(g, item)
        (offset,), (column,) = checkpoint.compute_mamba_prefill_checkpoints(
            [item.start + item.n],
            [item.n],
            hash_block_size=self._scheduler.hash_block_size,
            mamba_block_size=self.groups[g].block_size,
            checkpoint_alignment=1,
            drop_eagle_block=False,
            cache_hit_alignment_tokens=self._scheduler.kv_cache_manager.coordinator._cache_hit_alignment_tokens,
        )
        block = self._by_group[item.rid][g][column] if offset else NULL
        # What goes to the null block is lost.
        return step._replace(saves=[(item.start + offset, block), *step.saves]) if block != NULL else step


make_state = partial(PrefillCheckpointScheduler, groups=(FULL, STATE))
make_state_window = partial(PrefillCheckpointScheduler, groups=(*WINDOW, STATE))
make_state_sparse = partial(make_state, retention=0)
# A hit may end within a block, and the last chunk then goes on over the end of that block.
make_state_fine = partial(make_state, fine=True, spare=2, retention=0)
make_async_state = partial(make_state, asynchronous=True)
