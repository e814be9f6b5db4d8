"""LMDeploy."""

TARGETS = {
    "kv_manager": {
        "lmdeploy": "kvlockstep.impl.engines.lmdeploy.manager:make",
    },
}
