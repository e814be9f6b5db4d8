"""vLLM."""

TARGETS = {
    "block_pool": {
        "vllm-pool": "kvlockstep.impl.engines.vllm.block_pool:VllmBlockPool",
    },
    "kv_tier": {
        "vllm-cpu": "kvlockstep.impl.engines.vllm.tier:VllmTier",
        "vllm-cpu-arc": "kvlockstep.impl.engines.vllm.tier:make_arc",
    },
    "kv_manager": {
        "vllm": "kvlockstep.impl.engines.vllm.manager:make",
        "vllm-uncached": "kvlockstep.impl.engines.vllm.manager:make_uncached",
        "vllm-lora": "kvlockstep.impl.engines.vllm.manager:make_lora",
    },
    "kv_scheduler": {
        "vllm": "kvlockstep.impl.engines.vllm.scheduler:make",
        "vllm-priority": "kvlockstep.impl.engines.vllm.scheduler:make_priority",
        "vllm-async": "kvlockstep.impl.engines.vllm.scheduler:make_async",
        "vllm-ngram": "kvlockstep.impl.engines.vllm.scheduler:make_ngram",
        "vllm-async-ngram": "kvlockstep.impl.engines.vllm.scheduler:make_async_ngram",
        "vllm-async-eagle": "kvlockstep.impl.engines.vllm.scheduler:make_async_eagle",
        "vllm-connector": "kvlockstep.impl.engines.vllm.connector:make",
        "vllm-connector-fail": "kvlockstep.impl.engines.vllm.connector:make_failing",
        "vllm-connector-async": "kvlockstep.impl.engines.vllm.connector:make_async",
        "vllm-connector-inside": "kvlockstep.impl.engines.vllm.connector:make_inside",
        "vllm-offloading": "kvlockstep.impl.engines.vllm.offloading:make",
        "vllm-offloading-arc": "kvlockstep.impl.engines.vllm.offloading:make_arc",
        "vllm-offloading-inside": "kvlockstep.impl.engines.vllm.offloading:make_inside",
        "vllm-offloading-async": "kvlockstep.impl.engines.vllm.offloading:make_async",
    },
}
