"""LMCache."""

TARGETS = {
    "kv_tier": {
        "lmcache-cpu": "kvlockstep.impl.engines.lmcache.tier:LMCacheTier",
        "lmcache-cpu-lfu": "kvlockstep.impl.engines.lmcache.tier:make_lfu",
        "lmcache-cpu-mru": "kvlockstep.impl.engines.lmcache.tier:make_mru",
        "lmcache-cpu-fifo": "kvlockstep.impl.engines.lmcache.tier:make_fifo",
        "lmcache-disk-repaired": "kvlockstep.impl.engines.lmcache.disk_tier:make",
    },
}
