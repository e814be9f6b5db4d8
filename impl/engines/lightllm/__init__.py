"""LightLLM."""

TARGETS = {
    "kv_manager": {
        "lightllm": "kvlockstep.impl.engines.lightllm.manager:make",
    },
}
