"""vLLM's Triton kernels for KV (0.33.0) with their launchers: writes, and the block tables of both of its runners.

What they ask for at import is given here: the platform, names of quantisation, buffers, and a launcher without the
bookkeeping of its warm-up. Source: vllm/v1/attention/ops/triton_reshape_and_cache_flash.py, v1/worker/block_table.py,
v1/worker/gpu/block_table.py and v1/worker/gpu/buffer_utils.py.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, TypeVar

import torch

from kvlockstep.impl.engines.kernels_apart import Apart, cuda_platform
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.vllm.get import GET
from kvlockstep.impl.interpreted import INTERPRETED, tl, triton

ENGINE = find("vllm", "v1/attention/ops/triton_reshape_and_cache_flash.py", GET)
FP8_MOST = 448.0
Key = TypeVar("Key")


class KVQuantMode(IntEnum):
    """As in vllm/v1/kv_cache_interface.py, as far as the kernels ask."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


class CpuGpuBuffer:
    """A tensor on the host, as numpy too, and one on the device."""

    def __init__(self, *size: int, dtype: torch.dtype, device: Any, pin_memory: bool) -> None:
        self.cpu = torch.zeros(*size, dtype=dtype, pin_memory=pin_memory)
        self.gpu = torch.zeros_like(self.cpu, device=device)
        self.np = self.cpu.numpy()

    def copy_to_gpu(self, n: int) -> torch.Tensor:
        return self.gpu[:n].copy_(self.cpu[:n], non_blocking=True)


class JitKernel(Generic[Key]):
    """The kernel of a subclass, launched with the arguments of its call by name, or by name and `_ptr`."""

    kernel: ClassVar[Any]

    def register_warmup(self, **_keys: int) -> None:
        """Nothing is compiled ahead."""


def kernel_launcher(call: Callable[..., Any]) -> Callable[..., None]:
    """Launches what a call specifies: a grid, and constants beside its own arguments."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def launch(self: Any, *args: Any) -> None:
        grid, constants = call(self, *args)
        bound = signature.bind(self, *args).arguments
        names = {name: name if name in bound else name.removesuffix("_ptr") for name in self.kernel.arg_names}
        given = {name: bound[source] for name, source in names.items() if source in bound}
        self.kernel[grid](**{**given, **constants})

    return launch


def _no_group() -> None:
    raise AssertionError("no parallel group")


def _h2d(values: list[int], device: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


NAMES = (
    "vllm.v1.attention.ops.triton_reshape_and_cache_flash",
    "vllm.v1.worker.block_table",
    "vllm.v1.worker.gpu.block_table",
)
PLATFORM = cuda_platform()
GIVEN: dict[str, dict[str, Any]] = {
    "vllm.triton_utils": {"tl": tl, "triton": triton},
    "vllm.platforms": {"current_platform": PLATFORM},
    "vllm.logger": {"init_logger": lambda name: SimpleNamespace(warning_once=logging.getLogger(name).debug)},
    "vllm.distributed": {"get_dcp_group": _no_group, "get_pcp_group": _no_group},
    "vllm.model_executor.layers.quantization.utils.quant_utils": {
        "FP8_DTYPE": torch.float8_e4m3fn,
        "get_fp8_min_max": lambda: (-FP8_MOST, FP8_MOST),
    },
    "vllm.model_executor.warmup.jit_warmup": {"kernel_launcher": kernel_launcher},
    "vllm.model_executor.warmup.jit_warmup_triton_helper": {
        "LaunchSpec": tuple,
        "TritonWarmupTensor": object,
        "VllmTritonJitKernel": JitKernel,
        "triton_scalar_specialization_rep": int,
    },
    "vllm.utils.math_utils": {"cdiv": triton.cdiv},
    "vllm.utils.platform_utils": {"is_uva_available": lambda: False},
    "vllm.utils.torch_utils": {"async_tensor_h2d": _h2d, "get_accelerator_view_from_cpu_tensor": None},
    "vllm.v1.attention.backends.utils": {"PAD_SLOT_ID": -1},
    "vllm.v1.utils": {"CpuGpuBuffer": CpuGpuBuffer},
    "vllm.v1.kv_cache_interface": {
        "KVQuantMode": KVQuantMode,
        "is_quantized_kv_cache": lambda dtype: dtype.startswith("fp8"),
    },
}
APART = Apart(ENGINE, NAMES, GIVEN)
writes, first_runner, second_runner = APART.load(*NAMES)
if INTERPRETED:
    # The launcher asks which card it is to choose a tile; the smaller one is right for every card.
    writes.torch = SimpleNamespace(
        **{name: getattr(torch, name) for name in ("Tensor", "int8", "dtype")},
        cuda=SimpleNamespace(get_device_capability=lambda _device: PLATFORM.get_device_capability()),
    )
