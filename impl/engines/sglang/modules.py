"""How modules of SGLang are imported without a GPU, a server or a model, and the settings that they read.

Packages come without their `__init__`. Stubs stand for servers, models, kernels and configuration; the settings are
published as the engine does it, at its defaults.
Source: sglang/srt/runtime_context.py.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

from kvlockstep.impl.engines.loading import find, without_the_rest

BARE = ("sglang", "sglang.srt", "sglang.srt.managers", "sglang.srt.mem_cache", "sglang.srt.model_executor")
STUBS: tuple[str, ...] = (
    "dill",
    "fastapi",
    "IPython",
    "openai",
    "requests",
    "starlette",
    "torchvision",
    "triton",
    "sglang.kernels",
    "sglang.srt.configs",
    "sglang.srt.constrained",
    "sglang.srt.entrypoints",
    "sglang.srt.layers",
    "sglang.srt.models",
    "sglang.srt.multimodal",
    "sglang.srt.parser",
    "sglang.srt.server_args",
    "sglang.srt.layers.attention",
    "sglang.srt.layers.attention.dsv4",
    "sglang.srt.layers.attention.dsv4.unified_kv_gate",
)

ENGINE = find("sglang", "srt/mem_cache/unified_radix_cache.py", "pip download --no-deps sglang, and unzip the wheel")


@contextmanager
def sglang_alone(stubs: tuple[str, ...] = STUBS) -> Iterator[None]:
    """Lets modules of the engine be imported without the `stubs`; what they compile for a device stays plain Python."""

    def compile_nothing(*function: Any, **_options: Any) -> Any:
        # The engine writes both `@torch.compile` and `@torch.compile(...)`.
        return function[0] if function else lambda function: function

    with without_the_rest(ENGINE, BARE, stubs), patch.object(torch, "compile", compile_nothing):
        yield


# Whoever imports a module of the engine first decides which of its packages are bare. So the tree and what is below it
# are imported here, in front of any adapter. Admission counts with no output: the environment is read at the import.
with sglang_alone(), patch.dict(os.environ, {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "0"}):
    from sglang.srt import runtime_context
    from sglang.srt.mem_cache.cpp_utils.native_hash import get_native_hash

    for name in ("managers.schedule_batch", "managers.schedule_policy", "mem_cache.unified_radix_cache"):
        import_module(f"sglang.srt.{name}")

# The first hash of a machine compiles C++ for many seconds. It is asked for here, once: inside a step the time limit
# would cut the compiler off, again in every child, and the half-built extension would then be refused.
with suppress(RuntimeError):
    get_native_hash(array("q", (0,)), None)

DEFAULTS: dict[str, Any] = {
    "disagg": {"disaggregation_mode": "null"},
    "exec": {
        "features": {"enable_encoder_swa_bounded_replay": False},
        "kernel": {
            "attention_backend": "torch_native",
            "prefill_attention_backend": None,
            "decode_attention_backend": None,
        },
        "mamba": {
            "enable_mamba_extra_buffer": False,
            "enable_mamba_extra_buffer_lazy": False,
            "mamba_max_states_per_path": -1,
        },
    },
    "schedule": {"schedule_policy": "fcfs"},
    "serving": {"strip_thinking_cache": False},
    "spec": {"speculative_algorithm": None},
}


class Silent:
    """Stand-in for objects that report to somebody or wait for a device. All its methods do nothing."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_options: None


def configure(settings: Mapping[str, Any]) -> None:
    """Publishes these settings, by namespace, beside those that are published already."""
    context = runtime_context.get_context()
    if context._config_bags is None:
        context._config_bags = {}
    for name, leaves in settings.items():
        _fill(context._config_bags.setdefault(name, runtime_context._ConfigBag(name)), name, leaves)


def _fill(bag: Any, path: str, leaves: Mapping[str, Any]) -> None:
    for name, value in leaves.items():
        if not isinstance(value, dict):
            bag._set(name, value)
            continue
        if name not in bag._subs:
            bag._set_sub(name, runtime_context._ConfigBag(f"{path}.{name}"))
        _fill(bag._subs[name], f"{path}.{name}", value)


configure(DEFAULTS)
