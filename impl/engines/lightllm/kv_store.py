"""kv_store on LightLLM's `kv_trans` (1.0.1): rows from one pool to another, by lists of slots.

Here both pools are the same one, and sources and targets are apart. Source: lightllm/common/kv_trans_kernel/
{kv_trans, kv_trans_v2}.py.
"""

from __future__ import annotations

import torch

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.lightllm.get import GET
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.row_store import RowCopies

ENGINE = find("lightllm", "common/kv_trans_kernel/kv_trans_v2.py", GET)
NAMES = ("lightllm.common.kv_trans_kernel.kv_trans", "lightllm.common.kv_trans_kernel.kv_trans_v2")
first, second = Apart(ENGINE, NAMES, {}).load(*NAMES)


class TransferredRows(RowCopies):
    """The kernel between two pools."""

    engine = "lightllm"
    version = ENGINE.version
    apart = True

    def launch(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        for rows in self.rows():
            first.kv_trans(rows, sources, rows, targets)


class PrefillRows(TransferredRows):
    """The kernel of a prefill node, which takes a row from one of its workers' pools by a table of addresses."""

    def launch(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        for rows in self.rows():
            # The same pool stands for two workers, which the rows come from in turn.
            pools = torch.tensor([rows.data_ptr()] * 2, dtype=torch.uint64, device=self.device)
            workers = torch.arange(len(sources), device=self.device, dtype=torch.int32) % 2
            second.kv_trans_v2_for_p_node(pools, sources, workers, rows, targets, 2)


class DecodeRows(TransferredRows):
    """The kernel of a decode node, which gives a row to each card of the replica that its request is on."""

    def launch(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        for rows in self.rows():
            # The same pool stands for all cards: two replicas of two.
            pools = torch.tensor([rows.data_ptr()] * 4, dtype=torch.uint64, device=self.device)
            replicas = torch.arange(len(sources), device=self.device, dtype=torch.int32) % 2
            second.kv_trans_v2_for_d_node(pools, targets, replicas, rows, sources, 2)
