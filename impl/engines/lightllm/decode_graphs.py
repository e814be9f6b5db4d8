"""decode_graphs on LightLLM's `destindex_copy_kv` (1.0.1): the write of a captured step.

The engine has a spare slot behind all others. Lanes without a token write there, also here.
"""

from __future__ import annotations

import torch

from kvlockstep.impl.decode_graphs.graphs import Memory, Put, Tokens, slots_of
from kvlockstep.impl.engines.graph_step import EngineStep
from kvlockstep.impl.engines.lightllm.kv_write import ENGINE, common


class CopyStep(EngineStep):
    """A stamp is a head of K and one of V, of two elements each."""

    engine = "lightllm"
    version = ENGINE.version

    def _writer(self, lanes: int) -> Put:
        size = self._size

        def put(memory: Memory, tokens: Tokens) -> None:
            slots = slots_of(memory, tokens, size)
            rows, cache = (m.view(torch.float16).view(-1, 2, 2) for m in (memory.stamps[:lanes], memory.slots))
            common.destindex_copy_kv(rows, slots.to(torch.int32), cache)

        return put
