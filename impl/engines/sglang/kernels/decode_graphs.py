"""decode_graphs on SGLang's `set_mla_kv_buffer` (0.5.23): the write of a captured step.

The engine allocates slots on the host, outside of the graph, so they are ours. Lanes without a token have the slot that
the kernel is told to skip: the engine's is 0, and here it is the last one.
"""

from __future__ import annotations

import torch

from kvlockstep.impl.decode_graphs.graphs import Memory, Put, Tokens, slots_of
from kvlockstep.impl.engines.graph_step import EngineStep
from kvlockstep.impl.engines.sglang.kernels.kv_write import APART, ENGINE, latent


class LatentStep(EngineStep):
    """A stamp is a latent of 4 bytes, and 4 bytes of its rotated part."""

    engine = "sglang"
    version = ENGINE.version

    def _writer(self, lanes: int) -> Put:
        size = self._size

        def put(memory: Memory, tokens: Tokens) -> None:
            pad, slots = len(memory.slots) - 1, slots_of(memory, tokens, size)
            cache = memory.slots.view(torch.bfloat16).view(-1, 1, 4)
            stamps = memory.stamps[:lanes].view(torch.bfloat16).view(lanes, 1, 4)
            with APART.inside():
                latent.set_mla_kv_buffer_triton(cache, slots, stamps[..., :2], stamps[..., 2:], reserved_skip_index=pad)

        return put
