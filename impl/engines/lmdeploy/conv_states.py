"""kv_store on the prefill of LMDeploy's convolutions (0.16.0): the state that a request leaves behind.

A state keeps as many tokens as the kernel is wide, of which the first is never read. What is computed is not judged, so
the convolution itself is left out. In a prefill of this engine every request has a state: those of the judge that have
none do not take part. Source: lmdeploy/pytorch/nn/gated_delta.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from kvlockstep.impl.engines.cut import cut
from kvlockstep.impl.engines.lmdeploy.get import GET
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.prefilled_states import Prefill, PrefilledStates

ENGINE = find("lmdeploy", "pytorch/nn/gated_delta.py", GET)
NO_DRAFTS = SimpleNamespace(build_ctx=SimpleNamespace(num_spec_tokens=0))
gated: Any = cut(
    ENGINE,
    "lmdeploy.pytorch.nn.gated_delta",
    ("GatedDeltaMeta", "CausalConv1dFunc.conv1d_func"),
    {"torch": torch, "get_step_ctx_manager": lambda: NO_DRAFTS},
)
CONVOLUTION = SimpleNamespace(causal_conv1d_fn=lambda tokens, *_args, **_options: tokens, activation=None)


class FilledStates(PrefilledStates):
    """The state that the prefill of a request leaves; a wrong one where it is shorter than the state (known.toml)."""

    engine = "lmdeploy"
    version = ENGINE.version

    def prefill(self, prefill: Prefill) -> None:
        lengths = prefill.lengths[1:-1]
        tokens = prefill.tokens[prefill.lengths[0] :][: sum(lengths)]
        width = prefill.weight.shape[1] - 1
        counted = self._index(lengths)
        starts = torch.cat([counted.new_zeros(1), counted.cumsum(0)])
        history = prefill.counts[1:-1].to(counted.dtype)
        asked = SimpleNamespace(is_decoding=False, cu_seqlens_q=starts, q_seqlens=counted, kv_seqlens=counted + history)
        meta = gated.GatedDeltaMeta(len(tokens), width, prefill.lines[1:-1].long(), asked)
        state = prefill.state[:, :, :width]
        gated.conv1d_func(CONVOLUTION, tokens[None], prefill.weight, None, state, meta)


class LongFilledStates(FilledStates):
    """The same where each request fills its state."""

    def _tokens_of(self, wanted: torch.Tensor, by: int, line: int) -> tuple[torch.Tensor, bool]:
        return super()._tokens_of(wanted, 0, line) if bool(wanted[0].any()) else (wanted, bool(line % 2))
