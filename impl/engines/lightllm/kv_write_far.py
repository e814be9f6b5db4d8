"""kv_write on LightLLM's kernels for Phi-3 and MLA with more than 2^31 elements in a layer, on a card with 60 GB."""

from __future__ import annotations

from kvlockstep.impl.engines.lightllm.kv_write import LatentWriter, Phi3Writer
from kvlockstep.impl.engines.loading import EngineMissing
from kvlockstep.impl.interpreted import INTERPRETED

if INTERPRETED:
    raise EngineMissing("lightllm's kernels with far slots are judged on a card: a layer takes 4 GB and more")

ELEMENTS = (1 << 31) + (1 << 20)


class FarPhi3Writer(Phi3Writer):
    """The kernel for Phi-3 on a cache that is this large."""

    def __init__(self) -> None:
        super().__init__(least_elements=ELEMENTS)


class FarLatentWriter(LatentWriter):
    """The kernel for DeepSeek on a cache that is this large."""

    def __init__(self) -> None:
        super().__init__(least_elements=ELEMENTS)
