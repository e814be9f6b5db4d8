"""decode_graphs on LMDeploy's `fill_kv_cache` (0.16.0): the write of a captured step.

The kernel takes block tables and lengths. A graph has inputs for as many requests as it was captured for: those behind
the batch have a table of zeros and one token each, so that they write into block 0, which is nobody's. Here that block
lies in front of ours. Source: lmdeploy/pytorch/models/utils/cudagraph.py (`fill_buffers_cudagraph`).
"""

from __future__ import annotations

import torch

from kvlockstep.impl.decode_graphs.graphs import Memory, Put, Tokens
from kvlockstep.impl.engines.graph_step import TwoPlaneStep
from kvlockstep.impl.engines.lmdeploy.kv_write import ENGINE, filling

ELEMENTS = 4  # of bfloat16 in the 8 bytes of a slot


class FilledStep(TwoPlaneStep):
    """A stamp is a head of K and one of V. Lanes without a token are those of requests behind the batch."""

    engine = "lmdeploy"
    version = ENGINE.version

    def __init__(self, rows: int, width: int, blocks: int, block_size: int) -> None:
        super().__init__(rows, width, blocks, block_size)
        slots = self._memory.slots
        self._planes = torch.zeros(2, block_size + len(slots), dtype=slots.dtype, device=slots.device)
        self._memory = self._memory._replace(slots=self._planes[0, block_size:])
        self.values = self._planes[1, block_size:]

    def _writer(self, lanes: int) -> Put:
        caches = [plane[:-1].view(torch.bfloat16).view(-1, self._size, 1, ELEMENTS) for plane in self._planes]

        def put(memory: Memory, tokens: Tokens) -> None:
            grows = tokens.grows
            tables = torch.where(grows[:, None], memory.table[tokens.rows] + 1, 0).to(torch.int32)
            starts = torch.where(grows, torch.arange(lanes, device=grows.device), 0).to(torch.int32)
            whole = torch.where(grows, tokens.positions + 1, 1).to(torch.int32)
            stamps = memory.stamps[:lanes].view(torch.bfloat16).view(lanes, 1, ELEMENTS)
            filling.fill_kv_cache(stamps, stamps, *caches, starts, torch.ones_like(whole), whole, 1, tables)

        return put
