"""mini-sglang."""

TARGETS = {
    "kv_manager": {
        "mini-sglang": "kvlockstep.impl.engines.mini_sglang.manager:make",
        "mini-sglang-repaired": "kvlockstep.impl.engines.mini_sglang.manager:make_repaired",
    },
    "kv_scheduler": {
        "mini-sglang": "kvlockstep.impl.engines.mini_sglang.scheduler:make",
        "mini-sglang-repaired": "kvlockstep.impl.engines.mini_sglang.scheduler:make_repaired",
    },
}
