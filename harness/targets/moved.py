"""Moved factories: the old modules, which older traces name, to the new ones."""

MOVED = {
    "kvlockstep.impl.block_manager": "kvlockstep.impl.kv_manager.blocks",
    "kvlockstep.impl.block_pool": "kvlockstep.impl.block_pool.pool",
    "kvlockstep.impl.decode_graphs": "kvlockstep.impl.decode_graphs.graphs",
    "kvlockstep.impl.engines.lightllm": "kvlockstep.impl.engines.lightllm.manager",
    "kvlockstep.impl.engines.lmdeploy": "kvlockstep.impl.engines.lmdeploy.manager",
    "kvlockstep.impl.engines.mini_sglang": "kvlockstep.impl.engines.mini_sglang.manager",
    "kvlockstep.impl.engines.mini_sglang_scheduler": "kvlockstep.impl.engines.mini_sglang.scheduler",
    "kvlockstep.impl.engines.nano_vllm": "kvlockstep.impl.engines.nano_vllm.manager",
    "kvlockstep.impl.engines.nano_vllm_scheduler": "kvlockstep.impl.engines.nano_vllm.scheduler",
    "kvlockstep.impl.engines.sglang": "kvlockstep.impl.engines.sglang.manager",
    "kvlockstep.impl.engines.sglang.decode_graphs": "kvlockstep.impl.engines.sglang.kernels.decode_graphs",
    "kvlockstep.impl.engines.sglang.kv_store": "kvlockstep.impl.engines.sglang.kernels.kv_store",
    "kvlockstep.impl.engines.sglang.kv_write": "kvlockstep.impl.engines.sglang.kernels.kv_write",
    "kvlockstep.impl.engines.sglang.paged_alloc": "kvlockstep.impl.engines.sglang.kernels.paged_alloc",
    "kvlockstep.impl.engines.sglang.file_tier": "kvlockstep.impl.engines.sglang.tiers.file_tier",
    "kvlockstep.impl.engines.sglang.hicache": "kvlockstep.impl.engines.sglang.tiers.hicache",
    "kvlockstep.impl.engines.sglang.hierarchy": "kvlockstep.impl.engines.sglang.tiers.hierarchy",
    "kvlockstep.impl.engines.sglang.host_tier": "kvlockstep.impl.engines.sglang.tiers.host_tier",
    "kvlockstep.impl.engines.sglang.linked": "kvlockstep.impl.engines.sglang.tiers.linked",
    "kvlockstep.impl.engines.sglang.restoring": "kvlockstep.impl.engines.sglang.tiers.restoring",
    "kvlockstep.impl.engines.sglang.tiered": "kvlockstep.impl.engines.sglang.tiers.tiered",
    "kvlockstep.impl.engines.sglang_components": "kvlockstep.impl.engines.sglang.block_stack",
    "kvlockstep.impl.engines.sglang_scheduler": "kvlockstep.impl.engines.sglang.scheduler",
    "kvlockstep.impl.engines.transformers": "kvlockstep.impl.engines.transformers.manager",
    "kvlockstep.impl.engines.vllm": "kvlockstep.impl.engines.vllm.manager",
    "kvlockstep.impl.engines.vllm_components": "kvlockstep.impl.engines.vllm.block_pool",
    "kvlockstep.impl.engines.vllm_scheduler": "kvlockstep.impl.engines.vllm.scheduler",
    "kvlockstep.impl.kv_store": "kvlockstep.impl.kv_store.store",
    "kvlockstep.impl.kv_streams": "kvlockstep.impl.kv_streams.store",
    "kvlockstep.impl.paged_cache": "kvlockstep.impl.paged_cache.cache",
    "kvlockstep.impl.paged_manager": "kvlockstep.impl.kv_manager.paged",
    "kvlockstep.impl.pool_manager": "kvlockstep.impl.kv_manager.pool",
    "kvlockstep.impl.radix_cache": "kvlockstep.impl.radix_cache.cache",
    "kvlockstep.impl.radix_manager": "kvlockstep.impl.kv_manager.radix",
    "kvlockstep.impl.slot_manager": "kvlockstep.impl.kv_manager.slots",
    "kvlockstep.impl.slot_prefix_cache": "kvlockstep.impl.slot_prefix_cache.cache",
    "kvlockstep.reference.block_pool": "kvlockstep.reference.block_pool.pool",
    "kvlockstep.reference.decode_graphs": "kvlockstep.reference.decode_graphs.graphs",
    "kvlockstep.reference.kv_manager": "kvlockstep.reference.kv_manager.manager",
    "kvlockstep.reference.kv_scheduler": "kvlockstep.reference.kv_scheduler.scheduler",
    "kvlockstep.reference.kv_scheduler_overlap": "kvlockstep.impl.kv_scheduler.overlap",
    "kvlockstep.reference.kv_streams": "kvlockstep.reference.kv_streams.store",
    "kvlockstep.reference.paged_cache": "kvlockstep.reference.paged_cache.cache",
    "kvlockstep.reference.radix_cache": "kvlockstep.reference.radix_cache.cache",
}


def renamed(spec: str) -> str:
    """`module:factory` with the module that has the factory now."""
    module, colon, factory = spec.partition(":")
    return MOVED.get(module, module) + colon + factory
