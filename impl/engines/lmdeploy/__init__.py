"""LMDeploy."""

TARGETS = {
    "kv_write": {
        "lmdeploy-fill": "kvlockstep.impl.engines.lmdeploy.kv_write:FillWriter",
        "lmdeploy-fp8": "kvlockstep.impl.engines.lmdeploy.kv_write_fp8:Float8Writer",
        "lmdeploy-fp8-e5m2": "kvlockstep.impl.engines.lmdeploy.kv_write_fp8:WideFloat8Writer",
        "lmdeploy-fp8-tiles": "kvlockstep.impl.engines.lmdeploy.kv_write_fp8:TileWriter",
        "lmdeploy-fp8-power-tiles": "kvlockstep.impl.engines.lmdeploy.kv_write_fp8:PowerTileWriter",
        "lmdeploy-mla-tiles": "kvlockstep.impl.engines.lmdeploy.kv_write_fp8:LatentWriter",
        "lmdeploy-turbo": "kvlockstep.impl.engines.lmdeploy.kv_write_turbo:TurboWriter",
        "lmdeploy-int8": "kvlockstep.impl.engines.lmdeploy.kv_write:Int8Writer",
        "lmdeploy-int8-varied": "kvlockstep.impl.engines.lmdeploy.kv_write:VariedInt8Writer",
        "lmdeploy-int4-varied": "kvlockstep.impl.engines.lmdeploy.kv_write:VariedInt4Writer",
    },
    "decode_graphs": {
        "lmdeploy-step": "kvlockstep.impl.engines.lmdeploy.decode_graphs:FilledStep",
    },
    "kv_store": {
        "lmdeploy-packed": "kvlockstep.impl.engines.lmdeploy.kv_store:PackedBlocks",
        "lmdeploy-conv-prefill": "kvlockstep.impl.engines.lmdeploy.conv_states:FilledStates",
        "lmdeploy-conv-prefill-long": "kvlockstep.impl.engines.lmdeploy.conv_states:LongFilledStates",
        "lmdeploy-migration": "kvlockstep.impl.engines.lmdeploy.migration:MigratedBlocks",
    },
    "kv_manager": {
        "lmdeploy": "kvlockstep.impl.engines.lmdeploy.manager:make",
        "lmdeploy-window": "kvlockstep.impl.engines.lmdeploy.windows:make_window",
        "lmdeploy-window-wide": "kvlockstep.impl.engines.lmdeploy.windows:make_window_wide",
        "lmdeploy-state": "kvlockstep.impl.engines.lmdeploy.states:make_state",
        "lmdeploy-state-borrowed": "kvlockstep.impl.engines.lmdeploy.states:make_state_borrowed",
    },
}
