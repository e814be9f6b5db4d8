"""Implementations, and their names as targets: `module:factory` by contract, imported when they are asked for."""

TARGETS = {
    "slot_pool": {
        "pool": "kvlockstep.impl.slot_pool:SlotPool",
    },
    "slot_prefix_cache": {
        "tree": "kvlockstep.impl.slot_prefix_cache.cache:SlotPrefixCache",
    },
    "block_stack": {
        "stack": "kvlockstep.impl.block_stack:BlockStack",
    },
    "radix_cache": {
        "radix": "kvlockstep.impl.radix_cache.cache:RadixCache",
    },
    "block_pool": {
        "pool": "kvlockstep.impl.block_pool.pool:BlockPool",
    },
    "paged_cache": {
        "paged": "kvlockstep.impl.paged_cache.cache:PagedCache",
    },
    "kv_store": {
        "tensors": "kvlockstep.impl.kv_store.store:KVStore",
        "quantised": "kvlockstep.impl.kv_store.quantised:QuantisedStore",
    },
    "paged_alloc": {
        "tensors": "kvlockstep.impl.paged_alloc:PagedAlloc",
    },
    "kv_write": {
        "tensors": "kvlockstep.impl.kv_write.writer:Writer",
        "row-scales": "kvlockstep.impl.kv_write.writer:QuantisedWriter",
        "zero-points": "kvlockstep.reference.kv_write.writer:ZeroPointWriter",
        "hidden-zeros": "kvlockstep.reference.kv_write.writer:HiddenZeroWriter",
        "power-scales": "kvlockstep.reference.kv_write.split:PowerScaleWriter",
        "nearest-powers": "kvlockstep.reference.kv_write.split:NearestPowerWriter",
        "casts": "kvlockstep.reference.kv_write.split:UnitScaleWriter",
        "low-ends": "kvlockstep.reference.kv_write.split:LowEndWriter",
        "raw-values": "kvlockstep.reference.kv_write.split:SplitWriter",
        "norms-and-low-ends": "kvlockstep.reference.kv_write.split:NormAndLowWriter",
        "residuals-and-norms": "kvlockstep.reference.kv_write.residual:ResidualAndNormWriter",
        "tensor-scales": "kvlockstep.reference.kv_write.writer:TensorScaleWriter",
    },
    "slot_mapping": {
        "tables": "kvlockstep.impl.slot_mapping:SlotMapping",
    },
    "decode_graphs": {
        "graphs": "kvlockstep.impl.decode_graphs.graphs:DecodeGraphs",
    },
    "kv_streams": {
        "streams": "kvlockstep.impl.kv_streams.store:KVStreams",
    },
    "kv_tier": {
        "lru": "kvlockstep.impl.kv_tier.tier:lru",
        "arc": "kvlockstep.impl.kv_tier.tier:arc",
        "directory": "kvlockstep.impl.kv_tier.directory:DirectoryTier",
    },
    "kv_manager": {
        "blocks": "kvlockstep.impl.kv_manager.blocks:BlockManager",
        "slots": "kvlockstep.impl.kv_manager.slots:SlotManager",
        "radix": "kvlockstep.impl.kv_manager.radix:RadixManager",
        "pool": "kvlockstep.impl.kv_manager.pool:PoolManager",
        "paged": "kvlockstep.impl.kv_manager.paged:PagedManager",
        "tiered": "kvlockstep.reference.kv_manager.tiered:TieredManager",
        "fenced": "kvlockstep.impl.kv_manager.fenced:FencedManager",
        "fetching": "kvlockstep.reference.kv_manager.fetching:FetchingManager",
        "groups": "kvlockstep.reference.kv_manager.groups.geometries:StatePool",
        "tiered-window": "kvlockstep.reference.kv_manager.groups.geometries:TieredWindow",
        "tiered-state": "kvlockstep.reference.kv_manager.groups.geometries:TieredState",
        "tiered-groups": "kvlockstep.reference.kv_manager.groups.geometries:TieredStates",
        "fenced-groups": "kvlockstep.impl.kv_manager.fenced:FencedStates",
        "grouped-window": "kvlockstep.impl.kv_manager.grouped.geometries:make_window",
        "grouped-windows": "kvlockstep.impl.kv_manager.grouped.geometries:make_windows",
        "grouped-chunked": "kvlockstep.impl.kv_manager.grouped.geometries:make_chunked",
        "grouped-state": "kvlockstep.impl.kv_manager.grouped.geometries:make_state",
    },
    "kv_scheduler": {
        "overlap": "kvlockstep.impl.kv_scheduler.overlap:OverlapScheduler",
        "tiered": "kvlockstep.reference.kv_scheduler.tiered:TieredScheduler",
        "peered": "kvlockstep.reference.kv_scheduler.peered:PeeredScheduler",
        "fetching": "kvlockstep.reference.kv_scheduler.fetching:FetchingScheduler",
        "announcing": "kvlockstep.reference.kv_scheduler.announcing:AnnouncingScheduler",
        "fenced": "kvlockstep.impl.kv_scheduler.fenced:FencedScheduler",
        "groups": "kvlockstep.reference.kv_scheduler.grouped:StatePool",
        "grouped-windows": "kvlockstep.impl.kv_scheduler.grouped:BlockWindows",
        "grouped-chunked": "kvlockstep.impl.kv_scheduler.grouped:BlockChunks",
        "grouped-state": "kvlockstep.impl.kv_scheduler.grouped:BlockStates",
        "tiered-window": "kvlockstep.reference.kv_scheduler.tiered_groups:TieredWindow",
        "tiered-state": "kvlockstep.reference.kv_scheduler.tiered_groups:TieredState",
        "tiered-groups": "kvlockstep.reference.kv_scheduler.tiered_groups:TieredStates",
        "peered-window": "kvlockstep.reference.kv_scheduler.peered_groups:PeeredWindow",
        "peered-state": "kvlockstep.reference.kv_scheduler.peered_groups:PeeredState",
        "peered-groups": "kvlockstep.reference.kv_scheduler.peered_groups:PeeredStates",
        "fenced-window": "kvlockstep.impl.kv_scheduler.fenced_groups:FencedWindow",
        "fenced-groups": "kvlockstep.impl.kv_scheduler.fenced_groups:FencedStates",
        "grouped-overlap": "kvlockstep.impl.kv_scheduler.grouped:OverlapWindow",
        "grouped-checkpoints": "kvlockstep.impl.kv_scheduler.checkpointed:CheckpointedStates",
        "grouped-commits": "kvlockstep.impl.kv_scheduler.committed:CommittedStates",
        "grouped-overlap-state": "kvlockstep.impl.kv_scheduler.flying_states:OverlapStates",
    },
    "kv_index": {
        "chain": "kvlockstep.impl.kv_index.index:KVIndex",
        "counting": "kvlockstep.impl.kv_index.index:CountingKVIndex",
    },
}
