"""nano-vllm."""

TARGETS = {
    "kv_manager": {
        "nano-vllm": "kvlockstep.impl.engines.nano_vllm.manager:make",
    },
    "kv_scheduler": {
        "nano-vllm": "kvlockstep.impl.engines.nano_vllm.scheduler:make",
    },
}
