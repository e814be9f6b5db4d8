"""LightLLM."""

TARGETS = {
    "kv_write": {
        "lightllm-copy": "kvlockstep.impl.engines.lightllm.kv_write:CopyWriter",
        "lightllm-copy-phi3": "kvlockstep.impl.engines.lightllm.kv_write:Phi3Writer",
        "lightllm-copy-phi3-far": "kvlockstep.impl.engines.lightllm.kv_write_far:FarPhi3Writer",
        "lightllm-copy-mla": "kvlockstep.impl.engines.lightllm.kv_write:LatentWriter",
        "lightllm-copy-mla-far": "kvlockstep.impl.engines.lightllm.kv_write_far:FarLatentWriter",
        "lightllm-mla-row-scales": "kvlockstep.impl.engines.lightllm.kv_write_fp8:LatentWriter",
        "lightllm-mla-row-scales-half": "kvlockstep.impl.engines.lightllm.kv_write_fp8:HalfLatentWriter",
        "lightllm-int8": "kvlockstep.impl.engines.lightllm.kv_write:Int8Writer",
        "lightllm-int8-varied": "kvlockstep.impl.engines.lightllm.kv_write:VariedInt8Writer",
        "lightllm-int8-phi3": "kvlockstep.impl.engines.lightllm.kv_write:Phi3Int8Writer",
    },
    "decode_graphs": {
        "lightllm-step": "kvlockstep.impl.engines.lightllm.decode_graphs:CopyStep",
    },
    "kv_store": {
        "lightllm-trans": "kvlockstep.impl.engines.lightllm.kv_store:TransferredRows",
        "lightllm-trans-prefill": "kvlockstep.impl.engines.lightllm.kv_store:PrefillRows",
        "lightllm-trans-decode": "kvlockstep.impl.engines.lightllm.kv_store:DecodeRows",
    },
    "kv_manager": {
        "lightllm": "kvlockstep.impl.engines.lightllm.manager:make",
    },
}
