"""kv_store on vLLM's `swap_blocks_batch` (0.33.0), on a card: the kernel reads pinned memory of the host.

Only blocks that come back from the host go through it; the engine gives the other way to a copy engine, and so is it
ours here. Source: vllm/v1/kv_offload/cpu/swap_blocks_triton.py and gpu_worker.py.
"""

from __future__ import annotations

from typing import Any

import torch

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.loading import EngineMissing, find
from kvlockstep.impl.engines.row_store import GuardedStore
from kvlockstep.impl.engines.vllm.get import GET
from kvlockstep.impl.interpreted import INTERPRETED, tl, triton
from kvlockstep.reference.kv_store.contract import Pairs

ENGINE = find("vllm", "v1/kv_offload/cpu/swap_blocks_triton.py", GET)
if INTERPRETED:
    raise EngineMissing("vllm's kernel that swaps blocks in is judged on a card: its launcher moves addresses there")
NAME = "vllm.v1.kv_offload.cpu.swap_blocks_triton"
GIVEN: dict[str, dict[str, Any]] = {"vllm._custom_ops": {}, "vllm.triton_utils": {"tl": tl, "triton": triton}}
(swaps,) = Apart(ENGINE, [NAME], GIVEN).load(NAME)
# Below so many jobs the engine takes another path, which is faster and not in Triton. The kernel takes any number.
swaps.MIN_N = 1


class SwappedBlocks(GuardedStore):
    """Blocks from the host, a job for each block and plane; sizes are multiples of 8 bytes."""

    engine = "vllm"
    version = ENGINE.version
    copies = "swap_out swap_in"
    word = 8

    def swap_in(self, pairs: Pairs) -> None:
        self._check_pairs("swap_in", pairs, self._host_blocks, self._blocks)
        if not pairs:
            return
        planes, _, width = self._planes.shape
        size = width * self.shape.item_bytes
        froms = [self._host.data_ptr() + (s * planes + p) * size for s, _ in pairs for p in range(planes)]
        tos = [plane.data_ptr() + t * size for _, t in pairs for plane in self._planes]
        chunk = min(triton.next_power_of_2(size), 8192)
        swaps.swap_blocks_batch(
            *(torch.tensor(jobs) for jobs in (froms, tos, [size] * len(froms))), bytes_per_chunk=chunk
        )
        torch.cuda.current_stream().synchronize()
