"""kv_store on vLLM's `causal_conv1d_update` and `causal_conv1d_fn` (0.33.0): what becomes of a conv state.

Drafts come in one row after the other, with a start for each request, and not all requests have as many of them. What
is computed is not judged. Source: vllm/model_executor/layers/mamba/ops/causal_conv1d.py, and for the programs of a
prefill vllm/v1/attention/backends/utils.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from kvlockstep.impl.engines.cut import cut
from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.prefilled_states import Prefill, PrefilledStates
from kvlockstep.impl.engines.shifted_states import NULL, ShiftedStates, Update
from kvlockstep.impl.engines.vllm.get import GET
from kvlockstep.impl.interpreted import INTERPRETED, as_argument, tl, triton

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
metadata = cut(
    ENGINE,
    "vllm.v1.attention.backends.utils",
    ("compute_causal_conv1d_metadata",),
    {"np": np, "torch": torch, "np_to_pinned_tensor": torch.from_numpy, "PIN_MEMORY": False, "PAD_SLOT_ID": -1},
)


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


class FilledStates(PrefilledStates):
    """The state that the prefill of a request leaves."""

    engine = "vllm"
    version = ENGINE.version

    def prefill(self, prefill: Prefill) -> None:
        programs = metadata.compute_causal_conv1d_metadata(prefill.starts().cpu(), device=self.device)
        for one in programs[0].values():
            one |= {name: as_argument(one[name]) for name in ("batch_ptr", "token_chunk_offset_ptr")}
        convolving.causal_conv1d_fn(
            *(prefill.tokens.T, prefill.weight, None, prefill.state, prefill.starts()),
            cache_indices=prefill.lines,
            has_initial_state=prefill.counts,
            activation=None,
            null_block_id=NULL,
            metadata=SimpleNamespace(nums_dict=programs[0], batch_ptr=programs[1], token_chunk_offset_ptr=programs[2]),
        )
