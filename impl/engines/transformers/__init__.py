"""Transformers."""

TARGETS = {
    "kv_manager": {
        "transformers": "kvlockstep.impl.engines.transformers.manager:make",
    },
    "kv_write": {
        "transformers-static": "kvlockstep.impl.engines.transformers.kv_write:StaticWriter",
        "transformers-paged": "kvlockstep.impl.engines.transformers.kv_write:PagedWriter",
        "transformers-fp8": "kvlockstep.impl.engines.transformers.kv_write:Float8Writer",
    },
    "kv_store": {
        "transformers-sliding": "kvlockstep.impl.engines.transformers.kv_store:SlidingStates",
        "transformers-conv-states": "kvlockstep.impl.engines.transformers.kv_store:ConvStates",
    },
}
