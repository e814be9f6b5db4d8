"""SGLang."""

TARGETS = {
    "block_stack": {
        "sglang-pages": "kvlockstep.impl.engines.sglang.block_stack:PagedBlockStack",
    },
    "kv_tier": {
        "sglang-file": "kvlockstep.impl.engines.sglang.file_tier:make",
        "sglang-host": "kvlockstep.impl.engines.sglang.host_tier:SglangHostTier",
    },
    "decode_graphs": {
        "sglang-step": "kvlockstep.impl.engines.sglang.decode_graphs:LatentStep",
    },
    "kv_write": {
        "sglang-flash": "kvlockstep.impl.engines.sglang.kv_write:FlashWriter",
        "sglang-flash-window": "kvlockstep.impl.engines.sglang.kv_write:WindowWriter",
        "sglang-mla": "kvlockstep.impl.engines.sglang.kv_write:LatentWriter",
    },
    "kv_store": {
        "sglang-rows": "kvlockstep.impl.engines.sglang.kv_store:MovedRows",
        "sglang-rows-native": "kvlockstep.impl.engines.sglang.kv_store:NativeRows",
        "sglang-pages": "kvlockstep.impl.engines.sglang.kv_store:Pages",
        "sglang-states": "kvlockstep.impl.engines.sglang.kv_store:ConvStates",
    },
    "paged_alloc": {
        "sglang-paged": "kvlockstep.impl.engines.sglang.paged_alloc:PagedAllocator",
        "sglang-paged-sorted": "kvlockstep.impl.engines.sglang.paged_alloc:SortedAllocator",
    },
    "kv_manager": {
        "sglang": "kvlockstep.impl.engines.sglang.manager:make_unified_rust",
        "sglang-python": "kvlockstep.impl.engines.sglang.manager:make_unified_python",
        "sglang-radix": "kvlockstep.impl.engines.sglang.manager:make_radix",
        "sglang-hicache": "kvlockstep.impl.engines.sglang.tiered:make_through_rust",
        "sglang-hicache-python": "kvlockstep.impl.engines.sglang.tiered:make_through",
        "sglang-hicache-back": "kvlockstep.impl.engines.sglang.tiered:make_back_rust",
        "sglang-hicache-back-python": "kvlockstep.impl.engines.sglang.tiered:make_back",
        "sglang-hicache-selective": "kvlockstep.impl.engines.sglang.tiered:make_selective_rust",
        "sglang-hicache-selective-python": "kvlockstep.impl.engines.sglang.tiered:make_selective",
        "sglang-linker": "kvlockstep.impl.engines.sglang.linked:make_linked",
        "sglang-linker-python": "kvlockstep.impl.engines.sglang.linked:make_linked_python",
        "sglang-restore": "kvlockstep.impl.engines.sglang.restoring:make_through_rust",
        "sglang-restore-python": "kvlockstep.impl.engines.sglang.restoring:make_through",
        "sglang-restore-back": "kvlockstep.impl.engines.sglang.restoring:make_back",
        "sglang-restore-selective": "kvlockstep.impl.engines.sglang.restoring:make_selective",
        "sglang-window": "kvlockstep.impl.engines.sglang.windows:make_window_rust",
        "sglang-window-python": "kvlockstep.impl.engines.sglang.windows:make_window_python",
        "sglang-window-wide": "kvlockstep.impl.engines.sglang.windows:make_window_wide",
        "sglang-state": "kvlockstep.impl.engines.sglang.states:make_state_rust",
        "sglang-state-python": "kvlockstep.impl.engines.sglang.states:make_state_python",
    },
    "kv_scheduler": {
        "sglang": "kvlockstep.impl.engines.sglang.scheduler:make_overlap",
        "sglang-normal": "kvlockstep.impl.engines.sglang.scheduler:make",
        "sglang-priority": "kvlockstep.impl.engines.sglang.scheduler:make_overlap_priority",
        "sglang-hicache": "kvlockstep.impl.engines.sglang.hierarchy:make_overlap",
        "sglang-hicache-normal": "kvlockstep.impl.engines.sglang.hierarchy:make",
        "sglang-hicache-back": "kvlockstep.impl.engines.sglang.hierarchy:make_overlap_back",
        "sglang-hicache-selective": "kvlockstep.impl.engines.sglang.hierarchy:make_selective",
        "sglang-mixed-repaired": "kvlockstep.impl.engines.sglang.scheduler:make_overlap_mixed_repaired",
    },
}
