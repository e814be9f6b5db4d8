"""kv_store on SGLang's `causal_conv1d_update` (0.5.23): what the update of a conv state does to it.

What is computed is not judged. Source: sglang/kernels/ops/mamba/causal_conv1d_triton.py; where rows suit it, and
nothing is drafted, the engine has a CUDA kernel instead.
"""

from __future__ import annotations

from typing import Any

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.sglang.get import GET
from kvlockstep.impl.engines.shifted_states import NULL, ShiftedStates, Update
from kvlockstep.impl.interpreted import INTERPRETED

NAME = "sglang.kernels.ops.mamba.causal_conv1d_triton"
ENGINE = find("sglang", "kernels/ops/mamba/causal_conv1d_triton.py", GET)
GIVEN: dict[str, dict[str, Any]] = {"sglang.kernels.jit.utils": {"is_arch_support_pdl": lambda: not INTERPRETED}}
(convolving,) = Apart(ENGINE, [NAME], GIVEN).load(NAME)


class UpdatedStates(ShiftedStates):
    """Every request has as many drafts. The widest convolution has five columns."""

    engine = "sglang"
    version = ENGINE.version
    shifts = 3

    def update(self, update: Update) -> None:
        state, lines, accepted, tokens, weight = update
        convolving.causal_conv1d_update(
            tokens, state, weight, conv_state_indices=lines, num_accept_tokens=accepted, pad_slot_id=NULL
        )
