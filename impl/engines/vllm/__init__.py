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
        "vllm-window": "kvlockstep.impl.engines.vllm.hybrid:make_window",
        "vllm-windows": "kvlockstep.impl.engines.vllm.hybrid:make_windows",
        "vllm-window-alone": "kvlockstep.impl.engines.vllm.hybrid:make_window_alone",
        "vllm-window-two-sizes": "kvlockstep.impl.engines.vllm.hybrid:make_two_sizes",
        "vllm-window-sparse": "kvlockstep.impl.engines.vllm.hybrid:make_sparse",
        "vllm-chunked": "kvlockstep.impl.engines.vllm.hybrid:make_chunked",
        "vllm-state": "kvlockstep.impl.engines.vllm.states:make_state",
        "vllm-state-sparse": "kvlockstep.impl.engines.vllm.states:make_state_sparse",
        "vllm-window-retained": "kvlockstep.impl.engines.vllm.hybrid:make_retained",
        "vllm-window-eagle": "kvlockstep.impl.engines.vllm.hybrid:make_eagle",
        "vllm-state-fine": "kvlockstep.impl.engines.vllm.states:make_state_fine",
        "vllm-state-retained": "kvlockstep.impl.engines.vllm.states:make_state_retained",
        "vllm-state-window": "kvlockstep.impl.engines.vllm.states:make_all",
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
