"""vLLM's OffloadingConnector (0.33.0), with a copy engine that copies nothing.

Real are both sides of the connector. Its worker side hands transfers to an OffloadingWorker, whose place `CopyEngine`
takes. Its arithmetic of chunks is that of the engine's worker, SingleDirectionOffloadingHandler.transfer_async.
Source: vllm/distributed/kv_transfer/kv_connector/v1/offloading/; vllm/v1/kv_offload/cpu/gpu_worker.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Hashable
from typing import Any

from kvlockstep.impl.engines.copy_engine import Copies
from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.reference.kv.transfers import Transfer

BARE = ("vllm.distributed.kv_transfer.kv_connector.v1.offloading",)
STUBS = (
    "vllm._custom_ops",
    "vllm.distributed.parallel_state",
    "vllm.forward_context",
    "vllm.model_executor",
    "vllm.model_executor.layers.attention_layer_base",
    "vllm.v1.kv_offload.cpu.gpu_worker",
    "vllm.v1.kv_offload.cpu.shared_offload_region",
)
CPU = "cpu"

with without_the_rest(vllm.ENGINE, BARE, STUBS):
    offload: Any = importlib.import_module("vllm.v1.kv_offload.base")
    product: Any = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector")


class CopyEngine(Copies, offload.OffloadingWorker):  # type: ignore[misc]
    """Takes what the connector submits, and reports what it is told. `before` says where it is submitted now.

    A chunk of the tier holds `per_chunk` blocks, and each of these is a unit.
    """

    def __init__(self, per_chunk: int) -> None:
        super().__init__()
        self._per_chunk = per_chunk
        self.before = True
        self.finished: list[Any] = []
        self.rids: dict[Hashable, str] = {}

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        pairs = [(block, unit) for unit, block in self._places(dst_spec, src_spec)]
        self.submitted.append(Transfer(job_id, "store", CPU, pairs, (), self.before))
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        pairs = self._places(src_spec, dst_spec)
        after = tuple(self.fence) if self.before else ()
        self.submitted.append(Transfer(job_id, "load", CPU, pairs, [self.rids[job_id]], self.before, after))
        return True

    def get_finished(self) -> list[Any]:
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        self.fence += sorted(job_ids)

    def _places(self, chunks: Any, blocks: Any) -> list[tuple[int, int]]:
        """The unit of each block, as the engine's worker has it: those of a group go on from where its first one is."""
        size, left = self._per_chunk, chunks.block_ids.tolist()
        units: list[int] = []
        for n, first in zip(blocks.group_sizes, blocks.block_indices, strict=True):
            skipped = first % size if n else 0
            taken = -(-(skipped + n) // size)
            parts = [chunk * size + i for chunk in left[:taken] for i in range(size)]
            units += parts[skipped : skipped + n]
            left = left[taken:]
        if left:
            raise RuntimeError(f"chunks {left} are not copied")
        return list(zip(units, blocks.block_ids.tolist(), strict=True))


class OneTokenComputed(product.OffloadingConnector):  # type: ignore[misc]
    """Loads nothing for a request of one token: see vllm-one-token-loaded-again in known.toml."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if request.num_tokens == 1:
            return 0, False
        found: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return found


class Spec(offload.OffloadingSpec):  # type: ignore[misc]
    """Gives the connector its manager and its copy engine."""

    def __init__(self, config: Any, manager: Any, copies: CopyEngine) -> None:
        super().__init__(config)
        self._manager, self._copies = manager, copies

    def get_manager(self) -> Any:
        return self._manager

    def get_worker(self, kv_caches: Any) -> CopyEngine:
        return self._copies
