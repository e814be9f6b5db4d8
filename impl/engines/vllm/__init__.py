"""vLLM."""

TARGETS = {
    "block_pool": {
        "vllm-pool": "kvlockstep.impl.engines.vllm.block_pool:VllmBlockPool",
    },
    "kv_tier": {
        "vllm-cpu": "kvlockstep.impl.engines.vllm.tier:VllmTier",
        "vllm-cpu-arc": "kvlockstep.impl.engines.vllm.tier:make_arc",
    },
    "kv_write": {
        "vllm-flash": "kvlockstep.impl.engines.vllm.kv_write:FlashWriter",
        "vllm-joint": "kvlockstep.impl.engines.vllm.kv_write:JointWriter",
        "vllm-fp8": "kvlockstep.impl.engines.vllm.kv_write_fp8:Float8Writer",
        "vllm-row-scales": "kvlockstep.impl.engines.vllm.kv_write:RowScaleWriter",
    },
    "slot_mapping": {
        "vllm-table": "kvlockstep.impl.engines.vllm.slot_mapping:FirstRunner",
        "vllm-tables": "kvlockstep.impl.engines.vllm.slot_mapping:SecondRunner",
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
    },
}
