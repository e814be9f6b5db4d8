"""Triton, by its interpreter where there is no GPU; import it from here, before anything else does.

The interpreter runs kernels on CPU tensors, one program after the other: 0.3 to 1 ms each. What moves or maps runs
there as on a card. What computes may not: in Triton 3.6 a cast to float8 loses carries, does not saturate and drops
subnormals, and one to bfloat16 truncates. `numbers_are_right` says whether casts can be judged.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

INTERPRETED = not torch.cuda.is_available()
DEVICE = "cpu" if INTERPRETED else "cuda"
if INTERPRETED:
    # Triton reads it where a kernel is declared, its own included, so it is of no use once Triton is imported.
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise ImportError(
            "Triton was imported before its interpreter was chosen; set TRITON_INTERPRET=1 for this process"
        )
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

numbers_are_right = not INTERPRETED


def _mend_ranges() -> None:
    """Lets `range` of a kernel take a tensor with numpy 2.4, which makes no number of an array of one dimension."""
    from triton.runtime import interpreter  # noqa: PLC0415

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patched


def as_argument(tensor: torch.Tensor) -> Any:
    """What a kernel has of a tensor, for a launcher whose grid sets arguments: the interpreter converts them before."""
    if not INTERPRETED:
        return tensor
    from triton.runtime.interpreter import _implicit_cvt  # noqa: PLC0415

    return _implicit_cvt(tensor)


if INTERPRETED:
    _mend_ranges()

__all__ = ["DEVICE", "INTERPRETED", "as_argument", "numbers_are_right", "tl", "triton"]
