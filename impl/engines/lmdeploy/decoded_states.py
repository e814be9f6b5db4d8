"""kv_manager on LMDeploy's states (0.16) with checkpoints behind decodes (`prefix_cache_decode_state_interval`).

The engine makes the inputs of a decode before it takes in the output of the step before (`_main_loop_get_outputs`
calls `_prefetch_next_inputs` before `_finish_forward_output`). So its sequences are one token behind when it gives them
a block and reserves a checkpoint. The last token of a request is kept from the engine until then. Source:
lmdeploy/pytorch/engine/{engine_loop, inputs_maker}.py, beside those of states.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvlockstep.impl.engines.cut import cut
from kvlockstep.impl.engines.lmdeploy.manager import ENGINE
from kvlockstep.impl.engines.lmdeploy.states import CopyPlans, LmdeployStateManager, copies_of, plans

decoding = cut(
    ENGINE,
    "lmdeploy.pytorch.engine.inputs_maker",
    ("InputsMakerAsync._make_decode_cache_inputs", "InputsMakerAsync._ssm_prefix_cache_enabled"),
    {
        "CacheCheckpointInputs": SimpleNamespace,
        "_make_state_prefix_cache_save_plan": plans._make_state_prefix_cache_save_plan,
    },
)


class DecodePlans(CopyPlans):
    """The inputs maker, with the checkpoints of decodes."""

    config, spec_decoding = SimpleNamespace(is_ssm=True), False
    _make_decode_cache_inputs = decoding._make_decode_cache_inputs
    _ssm_prefix_cache_enabled = decoding._ssm_prefix_cache_enabled

    def decode_saves(self, seq: Any) -> list[tuple[str, int, int]]:
        """The copies behind the decode that is about to be sent."""
        inputs = self._make_decode_cache_inputs([seq], SimpleNamespace(max_q_seqlen=1))
        return copies_of(None, None if inputs is None else inputs.state_save_plan)


class LmdeployDecodedStates(LmdeployStateManager):
    """With a checkpoint in each block of tokens that a request decodes."""

    def __init__(self, blocks: int, block_size: int) -> None:
        super().__init__(blocks, block_size, max(2, blocks // 4), 2, prefix_cache_decode_state_interval=block_size)
        self._plans: DecodePlans = DecodePlans(self._scheduler)
        self._outputs: dict[str, int] = {}

    def append(self, rid: str, token: int) -> None:
        self._outputs[rid] = token

    def reserve(self, rid: str, n: int) -> bool:
        if rid not in self._outputs:
            return super().reserve(rid, n)
        if not self._make_room(self._sequences[rid], 1):
            return False
        self._batch[rid] = n
        return True

    def launch(self) -> None:
        for rid in [rid for rid in self._outputs if rid in self._batch]:
            self._saves[rid] = self._plans.decode_saves(self._sequences[rid])
            super().append(rid, self._outputs.pop(rid))
        super().launch()

    def preempt(self, rid: str) -> None:
        if rid in self._outputs:
            super().append(rid, self._outputs.pop(rid))
        super().preempt(rid)

    def _end(self, rid: str) -> None:
        self._outputs.pop(rid, None)
        super()._end(rid)
