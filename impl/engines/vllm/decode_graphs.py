"""decode_graphs on vLLM's slot mapping and write (0.33.0): table, slots and write as one captured step.

The block tables of the second runner turn positions into slots, and `triton_reshape_and_cache_flash` writes K and V
there. Lanes without a token are behind the others, as the runner orders a batch; the mapping pads their slots with -1
from the last query start on, which it reads on the device.
"""

from __future__ import annotations

import torch

from kvlockstep.impl.decode_graphs.graphs import Memory, Put, Tokens
from kvlockstep.impl.engines.graph_step import TwoPlaneStep
from kvlockstep.impl.engines.vllm.kernels import APART, ENGINE, second_runner, writes
from kvlockstep.impl.interpreted import DEVICE

ELEMENTS = 4  # of bfloat16 in the 8 bytes of a slot


class MappedStep(TwoPlaneStep):
    """A graph has block tables of its own, of the width of its table."""

    engine = "vllm"
    version = ENGINE.version

    def _writer(self, lanes: int) -> Put:
        with APART.inside():
            tables = second_runner.BlockTables([self._size], self._rows, lanes, [self._width], torch.device(DEVICE))
        rows, size, values = self._rows, self._size, self.values
        one = torch.ones(1, device=DEVICE)
        starts = torch.zeros(lanes + 1, dtype=torch.int32, device=DEVICE)

        def put(memory: Memory, tokens: Tokens) -> None:
            first = torch.argsort(~tokens.grows, stable=True)
            tables.block_tables[0].gpu.copy_(memory.table[:-1])
            starts[1:] = tokens.grows[first].cumsum(0)
            batch = tokens.rows[first].clamp(max=rows - 1).to(torch.int32)
            slots = tables.compute_slot_mappings(batch, starts, tokens.positions[first], lanes)[0]
            stamps = memory.stamps[:lanes][first].view(torch.bfloat16).view(lanes, 1, ELEMENTS)
            caches = (_cache(plane, size) for plane in (memory.slots, values))
            writes.triton_reshape_and_cache_flash(stamps, stamps, *caches, slots, "auto", one, one)

        return put


def _cache(plane: torch.Tensor, size: int) -> torch.Tensor:
    return plane[:-1].view(torch.bfloat16).view(-1, size, 1, ELEMENTS)
