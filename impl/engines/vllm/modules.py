"""vLLM's KV-cache code, loaded without what it needs a GPU, a server or a model for.

Real are the KV cache manager with all below it, the schedulers, requests and their outputs. So is
the base class of KV connectors. Stubs stand for configuration, sampling parameters, multimodal inputs, the connectors
of products and the engine's serialisation. A request's
sampling parameters and the scheduler's configuration are plain namespaces with the fields that the code reads, at
the engine's defaults (vllm/config, vllm/sampling_params.py).
"""

from __future__ import annotations

import importlib
import logging
from types import SimpleNamespace
from typing import Any

import torch

from kvlockstep.impl.engines.loading import find, without_the_rest
from kvlockstep.impl.engines.vllm.get import GET

BARE = (
    "vllm",
    "vllm.distributed",
    "vllm.distributed.kv_transfer",
    "vllm.distributed.kv_transfer.kv_connector",
    "vllm.distributed.kv_transfer.kv_connector.v1",
    "vllm.lora",
    "vllm.v1",
    "vllm.v1.core",
    "vllm.v1.core.sched",
    "vllm.v1.structured_output",
)
STUBS = (
    "vllm.compilation",
    "vllm.compilation.cuda_graph",
    "vllm.config",
    "vllm.config.ec_manager_config",
    "vllm.config.kv_events",
    "vllm.distributed.aux_output_connector",
    "vllm.distributed.aux_output_connector.connector",
    "vllm.distributed.ec_transfer",
    "vllm.distributed.ec_transfer.ec_connector",
    "vllm.distributed.ec_transfer.ec_connector.base",
    "vllm.distributed.ec_transfer.ec_connector.factory",
    "vllm.distributed.ec_transfer.ec_connector.metrics",
    "vllm.distributed.kv_transfer.kv_connector.factory",
    "vllm.inputs",
    "vllm.multimodal",
    "vllm.multimodal.encoder_budget",
    "vllm.multimodal.inputs",
    "vllm.multimodal.utils",
    "vllm.platforms",
    "vllm.platforms.interface",
    "vllm.pooling_params",
    "vllm.renderers",
    "vllm.sampling_params",
    "vllm.v1.attention",
    "vllm.v1.attention.backend",
    "vllm.v1.serial_utils",
)

ENGINE = find("vllm", "v1/core/kv_cache_planning.py", GET)


def _load(name: str) -> Any:
    return importlib.import_module(f"vllm.{name}")


with without_the_rest(ENGINE, BARE, STUBS):
    # The package itself imports grammar compilers; the scheduler only names this class in an annotation.
    _load("v1.structured_output").StructuredOutputManager = object
    # Text requests have no media to strip.
    _load("multimodal.utils").strip_covered_mm_data = lambda features, *_, **__: features
    connector = _load("distributed.kv_transfer.kv_connector.v1.base")
    # The package's own `__init__` imports these names, and every connector.
    vars(_load("distributed.kv_transfer.kv_connector.v1")).update(
        {name: getattr(connector, name) for name in ("KVConnectorBase_V1", "KVConnectorRole", "SupportsHMA")}
    )
    manager = _load("v1.core.kv_cache_manager")
    utils = _load("v1.core.kv_cache_utils")
    pool = _load("v1.core.block_pool")
    single_type = _load("v1.core.single_type_kv_cache_manager")
    interface = _load("v1.kv_cache_interface")
    request = _load("v1.request")
    hashing = _load("utils.hashing")
    lora = _load("lora.request")
    scheduler = _load("v1.core.sched.scheduler")
    async_scheduler = _load("v1.core.sched.async_scheduler")
    outputs = _load("v1.outputs")
    pause = _load("v1.core.sched.interface").PauseState
    events = _load("distributed.kv_events")

logging.getLogger("vllm").setLevel(logging.CRITICAL)
single_type.register_all_kvcache_specs(None)
HASH = hashing.sha256
ADAPTER = "adapter-"
utils.init_none_hash(HASH)
ABORTED = request.RequestStatus.FINISHED_ABORTED
ENDED_BY_ITSELF = (request.RequestStatus.FINISHED_STOPPED, request.RequestStatus.FINISHED_LENGTH_CAPPED)
PAUSED_ALL, UNPAUSED = pause.PAUSED_ALL, pause.UNPAUSED
PREEMPTED = request.RequestStatus.PREEMPTED
RUNNING = request.RequestStatus.RUNNING


def cache_config(blocks: int, block_size: int) -> Any:
    """One group of full attention with `blocks` blocks beside the null block, which is block 0."""
    spec = interface.FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float16)
    return interface.KVCacheConfig(blocks + 1, [], [interface.KVCacheGroupSpec(["layer"], spec)])


def block_hasher(block_size: int, ahead: int = 0) -> Any:
    """The function that computes a request's block hashes, with the engine's default hash. A hash covers `ahead` tokens
    behind its block as well.
    """
    return utils.get_request_block_hasher(block_size, HASH, ahead)


def make_request(
    rid: str,
    tokens: list[int],
    hasher: Any,
    extra_key: int | None,
    adapters: bool,
    max_tokens: int = 1 << 20,
    priority: int = 0,
    arrival: float = 0.0,
    end_token: int | None = None,
) -> Any:
    """A text request under an extra key: a LoRA adapter's number if `adapters`, else a cache salt.

    It ends by its length, and by `end_token` if there is one.
    """
    sampling = SimpleNamespace(
        max_tokens=max_tokens,
        min_tokens=0,
        eos_token_id=end_token,
        stop_token_ids=(),
        repetition_detection=None,
        structured_outputs=None,
        extra_args=None,
        skip_reading_prefix_cache=None,
        num_logprobs=None,
    )
    adapter = None
    if extra_key is not None and adapters:
        adapter = lora.LoRARequest(f"{ADAPTER}{extra_key}", 1 + extra_key % 2**31, f"/adapters/{extra_key}")
    return request.Request(
        rid,
        list(tokens),
        sampling,
        None,
        arrival_time=arrival,
        lora_request=adapter,
        cache_salt=None if extra_key is None or adapters else str(extra_key),
        priority=priority,
        block_hasher=hasher,
    )
