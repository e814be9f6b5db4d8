"""kv_store on what LMDeploy moves between instances (0.16.0): `CacheEngine.migrate`, over a memory of ours.

A decode instance reads blocks of a prefill instance, each layer by an offset of its own in the memory of either. The
engine names the reads, and a backend for RDMA or NVLink does them. Here the backend copies bytes. The other instance
has what this one had before the call, in blocks that are more than this one's. Source:
lmdeploy/pytorch/engine/cache_engine.py and lmdeploy/pytorch/disagg/messages.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from kvlockstep.impl.engines.cut import cut
from kvlockstep.impl.engines.lmdeploy.get import GET
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.row_store import BlockCopies

ENGINE = find("lmdeploy", "pytorch/engine/cache_engine.py", GET)
OTHER, MORE = "prefill", 3


class AssignmentInstruct(NamedTuple):
    """As in lmdeploy/pytorch/disagg/messages.py: `length` bytes from a place of the other instance to one of this."""

    mr_key: int
    target_offset: int
    source_offset: int
    length: int


class MigrationAssignment(NamedTuple):
    """As in lmdeploy/pytorch/disagg/messages.py."""

    protocol: Any
    remote_engine_id: str
    batch: list[AssignmentInstruct]


caches = cut(
    ENGINE,
    "lmdeploy.pytorch.engine.cache_engine",
    ("CacheEngine.migrate",),
    {"AssignmentInstruct": AssignmentInstruct, "MigrationAssignment": MigrationAssignment},
)


class Reads:
    """A backend that copies bytes of `theirs` to `ours`, both of one dimension."""

    def __init__(self, theirs: torch.Tensor, ours: torch.Tensor, blocks: int) -> None:
        self._theirs, self._ours = theirs, ours
        self.links = {OTHER: SimpleNamespace(remote_engine_config=SimpleNamespace(num_gpu_blocks=blocks))}

    async def p2p_migrate(self, assignment: MigrationAssignment) -> None:
        for _, there, here, count in assignment.batch:
            self._ours[here : here + count] = self._theirs[there : there + count]


class MigratedBlocks(BlockCopies):
    """Blocks of all layers in one allocation without guards: the engine counts on there being nothing between them."""

    engine = "lmdeploy"
    version = ENGINE.version
    guarded = interpreted = False

    def launch(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        planes, blocks, _ = self._planes.shape
        ours = self._planes.view(torch.uint8)
        theirs = torch.full((planes, blocks + MORE, ours.shape[2]), 0xA5, dtype=torch.uint8, device=self.device)
        theirs[:, :blocks] = ours
        cache = SimpleNamespace(
            full_gpu_cache=ours,
            cache_config=SimpleNamespace(block_size=1, kernel_block_size=1, num_gpu_blocks=blocks),
            model_config=SimpleNamespace(num_layers=planes),
            migration_backend_impl=Reads(theirs.flatten(), ours.flatten(), blocks + MORE),
        )
        pairs = list(zip(sources.tolist(), targets.tolist(), strict=True))
        moving = caches.migrate(cache, SimpleNamespace(protocol=None, requests=[(OTHER, pairs)]))
        with_end = iter(moving.__await__())
        assert next(with_end, None) is None, "the backend waits for nothing"

    def _room(self, planes: int, blocks: int, width: int) -> torch.Tensor:
        return torch.zeros(planes, blocks, width, dtype=self._word, device=self.device)
