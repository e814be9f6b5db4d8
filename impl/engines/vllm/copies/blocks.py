"""kv_store on what vLLM copies blocks and states with (0.33.0).

Source: `copy_kv_cache_blocks_inplace` of vllm/v1/worker/utils.py, by indexing, and `batch_memcpy` of
vllm/v1/worker/mamba_utils.py, a Triton kernel over addresses and sizes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from kvlockstep.impl.engines.cut import cut
from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.row_store import BlockCopies
from kvlockstep.impl.engines.vllm.get import GET
from kvlockstep.impl.interpreted import tl, triton
from kvlockstep.reference.kv.shape import KVShape

ENGINE = find("vllm", "v1/worker/mamba_utils.py", GET)


def _h2d(values: Any, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values).to(device)


workers = cut(
    ENGINE,
    "vllm.v1.worker.utils",
    ("copy_kv_cache_blocks_inplace",),
    {"np": np, "torch": torch, "async_tensor_h2d": _h2d},
)
GIVEN: dict[str, dict[str, Any]] = {
    "vllm.triton_utils": {"tl": tl, "triton": triton},
    "vllm.config": {"CacheConfig": object},
    "vllm.logger": {"init_logger": lambda _name: SimpleNamespace()},
    "vllm.model_executor.layers.mamba.mamba_utils": {
        "MambaStateCopyFuncsByType": dict,
        "get_conv_copy_spec": None,
        "get_temporal_copy_spec": None,
        "is_conv_state_dim_first": None,
    },
    "vllm.utils.gpu_sync_debug": {"gpu_sync_allowed": None},
    "vllm.utils.math_utils": {"cdiv": triton.cdiv},
    "vllm.v1.core.sched.output": {"SchedulerOutput": object},
    "vllm.v1.kv_cache_interface": {
        "KVCacheConfig": object,
        "KVCacheGroupSpec": object,
        "MambaSpec": object,
        "UniformTypeKVCacheSpecs": object,
    },
    "vllm.v1.utils": {"CpuGpuBuffer": object},
    "vllm.v1.worker.gpu_input_batch": {"CachedRequestState": object, "InputBatch": object},
}
NAME = "vllm.v1.worker.mamba_utils"
(mamba,) = Apart(ENGINE, [NAME], GIVEN).load(NAME)


class CopiedBlocks(BlockCopies):
    """Blocks of every layer and plane, each in a view of its own, as two kernel blocks where they can be halved."""

    engine = "vllm"
    version = ENGINE.version

    def launch(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        pairs = list(zip(sources.tolist(), targets.tolist(), strict=True))
        workers.copy_kv_cache_blocks_inplace(self.caches(), self._blocks, pairs)

    def caches(self) -> list[torch.Tensor]:
        halves = 2 if self.block_size % 2 == 0 else 1
        return [plane.view(self._blocks * halves, -1) for plane in self._planes]


class JointBlocks(CopiedBlocks):
    """Blocks of one allocation without guards that keeps all planes of a block together: it is copied as bytes."""

    guarded = False
    page_major = True

    def _room(self, planes: int, blocks: int, width: int) -> torch.Tensor:
        return torch.zeros(blocks, planes, width, dtype=self._word, device=self.device).transpose(0, 1)

    def caches(self) -> list[torch.Tensor]:
        return list(self._planes)


class StateBlocks(BlockCopies):
    """Blocks of Mamba states by address, each block of each plane by a program; sources and targets are apart."""

    engine = "vllm"
    version = ENGINE.version
    apart = True

    def __init__(self, blocks: int, block_size: int, host_blocks: int, shape: KVShape, layout: str) -> None:
        super().__init__(blocks, block_size, host_blocks, shape, layout)
        self._addresses = torch.tensor([[plane.data_ptr()] for plane in self._planes], device=self.device)

    def launch(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        size = self._planes.shape[2] * self.shape.item_bytes
        froms, tos = ((self._addresses + blocks * size).flatten().view(torch.uint64) for blocks in (sources, targets))
        mamba.batch_memcpy(froms, tos, torch.full((len(froms),), size, dtype=torch.int32, device=self.device))
