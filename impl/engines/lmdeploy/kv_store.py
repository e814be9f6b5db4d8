"""kv_store on LMDeploy's `copy_packed_cache` (0.16.0): whole blocks of bytes, in all planes with one launch.

Sources and targets are apart, and pages take multiples of 8 bytes. Source:
lmdeploy/pytorch/kernels/cuda/copy_packed_cache.py.
"""

from __future__ import annotations

import torch

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.lmdeploy.get import GET
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.row_store import BlockCopies

ENGINE = find("lmdeploy", "pytorch/kernels/cuda/copy_packed_cache.py", GET)
NAME = "lmdeploy.pytorch.kernels.cuda.copy_packed_cache"
(packed,) = Apart(ENGINE, [NAME], {}).load(NAME)


class PackedBlocks(BlockCopies):
    """A block is its tokens' pages, one for each."""

    engine = "lmdeploy"
    version = ENGINE.version
    apart = True
    word = 8

    def launch(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        planes, blocks, _ = self._planes.shape
        pages = self._planes.view(torch.uint8).view(planes, blocks * self.block_size, -1)
        packed.copy_packed_cache(pages, sources, targets, self.block_size)
