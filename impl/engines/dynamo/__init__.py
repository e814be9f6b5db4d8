"""NVIDIA Dynamo, the index of its KV-aware router."""

TARGETS = {
    "kv_index": {
        "dynamo": "kvlockstep.impl.engines.dynamo.index:make",
    },
}
