"""kv_store on SGLang's `causal_conv1d_update` and `causal_conv1d_fn` (0.5.23): what becomes of a conv state.

What is computed is not judged. Source: sglang/kernels/ops/mamba/causal_conv1d_triton.py; where rows suit it, and
nothing is drafted, the engine has a CUDA kernel instead.
"""

from __future__ import annotations

from typing import Any

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.prefilled_states import Prefill, PrefilledStates
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


class FilledStates(PrefilledStates):
    """The state that the prefill of a request leaves."""

    engine = "sglang"
    version = ENGINE.version

    def prefill(self, prefill: Prefill) -> None:
        convolving.causal_conv1d_fn(
            *(prefill.tokens.T, prefill.weight, None, prefill.state, prefill.starts(), prefill.lengths),
            cache_indices=prefill.lines,
            has_initial_state=prefill.counts,
            activation=None,
            pad_slot_id=NULL,
        )
