"""Transformers."""

TARGETS = {
    "kv_manager": {
        "transformers": "kvlockstep.impl.engines.transformers.manager:make",
    },
}
