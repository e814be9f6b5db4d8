"""Transformers."""

TARGETS = {
    "kv_manager": {
        "transformers": "kvlockstep.impl.engines.transformers.manager:make",
        "transformers-window": "kvlockstep.impl.engines.transformers.windows:make_window",
        "transformers-window-wide": "kvlockstep.impl.engines.transformers.windows:make_window_wide",
        "transformers-window-alone": "kvlockstep.impl.engines.transformers.windows:make_window_alone",
        "transformers-window-packed": "kvlockstep.impl.engines.transformers.windows:make_window_packed",
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
