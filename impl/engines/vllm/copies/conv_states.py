"""kv_store on vLLM's `causal_conv1d_update` (0.33.0): what the update of a conv state does to it.

Drafts come in one row after the other, with a start for each request, and not all requests have as many of them. What
is computed is not judged. Source: vllm/model_executor/layers/mamba/ops/causal_conv1d.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.shifted_states import NULL, ShiftedStates, Update
from kvlockstep.impl.engines.vllm.get import GET
from kvlockstep.impl.interpreted import INTERPRETED, tl, triton

NAME = "vllm.model_executor.layers.mamba.ops.causal_conv1d"
ENGINE = find("vllm", "model_executor/layers/mamba/ops/causal_conv1d.py", GET)
GIVEN: dict[str, dict[str, Any]] = {
    "vllm.platforms": {
        "current_platform": SimpleNamespace(is_cpu=lambda: False, is_arch_support_pdl=lambda: not INTERPRETED)
    },
    "vllm.triton_utils": {"tl": tl, "triton": triton},
    "vllm.v1.attention.backends.utils": {"NULL_BLOCK_ID": 0, "PAD_SLOT_ID": -1},
}
(convolving,) = Apart(ENGINE, [NAME], GIVEN).load(NAME)


class UpdatedStates(ShiftedStates):
    """The engine's null block is 0; which one it is, is an argument, and here there is none of that number."""

    engine = "vllm"
    version = ENGINE.version

    def update(self, update: Update) -> None:
        state, lines, accepted, tokens, weight = update
        if accepted is None:
            one = tokens[:, :, 0] if tokens.shape[2] == 1 else tokens
            convolving.causal_conv1d_update(one, state, weight, conv_state_indices=lines, null_block_id=NULL)
            return
        most = tokens.shape[2]
        counts = [most - (i + self._calls) % most for i in range(len(lines))]
        rows = torch.cat([tokens[i, :, :n].T for i, n in enumerate(counts)])
        starts = self._index([sum(counts[:i]) for i in range(len(counts) + 1)]).to(torch.int32)
        convolving.causal_conv1d_update(
            *(rows, state, weight),
            conv_state_indices=lines,
            num_accepted_tokens=accepted,
            query_start_loc=starts,
            max_query_len=most,
            null_block_id=NULL,
        )
