"""The contracts by name. An entry here is all that registers one.

The rest is found by its name: the model in `kvlockstep.models.NAME`, our own targets in `kvlockstep.impl.TARGETS`.
"""

from __future__ import annotations

from kvlockstep.reference.block_pool.contract import BlockPoolTarget
from kvlockstep.reference.block_stack import BlockStackTarget
from kvlockstep.reference.contract import Contract
from kvlockstep.reference.decode_graphs.contract import DecodeGraphsTarget
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv_index.contract import IndexTraits, KVIndexOptional, KVIndexTarget
from kvlockstep.reference.kv_index.rules import RULES as INDEX_RULES
from kvlockstep.reference.kv_manager.contract import KVManagerOptional, KVManagerTarget
from kvlockstep.reference.kv_manager.groups.contract import grouped_target
from kvlockstep.reference.kv_manager.rules import RULES
from kvlockstep.reference.kv_manager.traits import Traits
from kvlockstep.reference.kv_scheduler.contract import KVSchedulerOptional, KVSchedulerTarget
from kvlockstep.reference.kv_scheduler.instead import target_instead
from kvlockstep.reference.kv_scheduler.rules import RULES as SCHEDULER_RULES
from kvlockstep.reference.kv_scheduler.traits import SchedulerTraits
from kvlockstep.reference.kv_store.contract import KVStoreOptional, KVStoreTarget, StoreTraits
from kvlockstep.reference.kv_store.rules import RULES as STORE_RULES
from kvlockstep.reference.kv_streams.contract import KVStreamsTarget
from kvlockstep.reference.kv_tier.contract import KVTierOptional, KVTierTarget, TierTraits, bytes_target
from kvlockstep.reference.kv_tier.rules import RULES as TIER_RULES
from kvlockstep.reference.kv_write.contract import KVWriteOptional, KVWriteTarget, WriteTraits
from kvlockstep.reference.kv_write.rules import RULES as WRITE_RULES
from kvlockstep.reference.paged_alloc.contract import PagedAllocTarget
from kvlockstep.reference.paged_cache.contract import PagedCacheTarget
from kvlockstep.reference.radix_cache.contract import RadixCacheTarget
from kvlockstep.reference.slot_mapping.contract import MappingTraits, SlotMappingOptional, SlotMappingTarget
from kvlockstep.reference.slot_mapping.rules import RULES as MAPPING_RULES
from kvlockstep.reference.slot_pool import SlotPoolTarget
from kvlockstep.reference.slot_prefix_cache.contract import SlotPrefixCacheTarget

SHAPE = KVShape(2, 1, 2, "int8")


CONTRACTS = {
    contract.name: contract
    for contract in (
        Contract(
            "slot_pool",
            "An allocator of numbered slots. Each slot has a version, which tells its holders apart.",
            SlotPoolTarget,
            {"slots": 4},
            "kvlockstep.reference.slot_pool:SlotPool",
        ),
        Contract(
            "slot_prefix_cache",
            "A prefix cache in which a sequence has a whole slot for its KV. A lookup finds the longest cached prefix; "
            "the caller then reuses its slot, or copies the KV into another one.",
            SlotPrefixCacheTarget,
            {"capacity": 4, "slots": 4, "positions": 4},
            "kvlockstep.reference.slot_prefix_cache:SlotPrefixCache",
        ),
        Contract(
            "block_stack",
            "A free list of blocks, used as a stack. It is safe to use while a CUDA graph is captured.",
            BlockStackTarget,
            {"blocks": 4},
            "kvlockstep.reference.block_stack:BlockStack",
        ),
        Contract(
            "radix_cache",
            "A prefix cache as a radix tree of pages, together with its page allocator. Handles pin the paths that "
            "requests use.",
            RadixCacheTarget,
            {"pages": 4, "page_size": 2},
            "kvlockstep.reference.radix_cache.cache:RadixCache",
        ),
        Contract(
            "block_pool",
            "A pool of reference-counted blocks with a prefix cache: full blocks are found by the hash of their tokens "
            "and of all tokens before them. A free block keeps its content until it is evicted.",
            BlockPoolTarget,
            {"blocks": 4, "block_size": 2, "hash_function": None},
            "kvlockstep.reference.block_pool.pool:BlockPool",
        ),
        Contract(
            "paged_cache",
            "A paged KV cache: sequences with block tables, forks with copy-on-write, registered prefixes, and an "
            "eviction policy.",
            PagedCacheTarget,
            {"blocks": 4, "block_size": 2, "policy": "lru", "shape": SHAPE},
            "kvlockstep.reference.paged_cache.cache:PagedCache",
        ),
        Contract(
            "kv_store",
            "The KV itself, bit for bit, on the device and on the host: writes, gathers, copies of blocks and swaps.",
            KVStoreTarget,
            {"blocks": 4, "block_size": 2, "host_blocks": 2, "shape": SHAPE, "layout": "layer_major"},
            "kvlockstep.reference.kv_store:KVStore",
            StoreTraits,
            KVStoreOptional,
            rules=STORE_RULES,
        ),
        Contract(
            "paged_alloc",
            "Slots for the new tokens of a batch of requests, from pages of several slots. The last page of a request "
            "may be partly filled, and is filled first.",
            PagedAllocTarget,
            {"pages": 4, "page_size": 2},
            "kvlockstep.reference.paged_alloc.allocator:PagedAlloc",
        ),
        Contract(
            "kv_write",
            "The kernel that writes the KV of new tokens into slots of a paged cache, as bits or quantised. The judge "
            "looks at every byte of the flat buffer, the gaps and guards that belong to nobody included.",
            KVWriteTarget,
            {},
            "kvlockstep.reference.kv_write.writer:KVWriter",
            WriteTraits,
            KVWriteOptional,
            rules=WRITE_RULES,
        ),
        Contract(
            "slot_mapping",
            "The block tables of a batch and the slot of each of its tokens, which is where kernels write. Padding is "
            "for the graphs that are captured for a larger batch.",
            SlotMappingTarget,
            {"rows": 2, "width": 2, "block_size": 2, "tokens": 4},
            "kvlockstep.reference.slot_mapping.mapping:SlotMapping",
            MappingTraits,
            SlotMappingOptional,
            rules=MAPPING_RULES,
        ),
        Contract(
            "decode_graphs",
            "Decode steps as captured graphs, one for each batch size, with padding and persistent input buffers.",
            DecodeGraphsTarget,
            {"rows": 2, "width": 2, "blocks": 4, "block_size": 2},
            "kvlockstep.reference.decode_graphs.graphs:DecodeGraphs",
        ),
        Contract(
            "kv_streams",
            "KV that several streams write, read, copy and swap, each in its own order.",
            KVStreamsTarget,
            {"blocks": 4, "host_blocks": 2},
            "kvlockstep.reference.kv_streams.store:KVStreams",
        ),
        Contract(
            "kv_tier",
            "A store of chunks by key below any scheduler, as offload backends and host pools are: chunks are stored "
            "and loaded by plans that end in any order, and evicted by a policy of its own. The judge owns the bytes, "
            "unless the tier holds them.",
            KVTierTarget,
            {"units": 4},
            "kvlockstep.reference.kv_tier.tier:KVTier",
            TierTraits,
            KVTierOptional,
            bytes_target,
            TIER_RULES,
        ),
        Contract(
            "kv_manager",
            "The KV-cache manager of an engine, as its scheduler sees it: requests are admitted, reserve slots, commit "
            "what was computed, and end. The judge owns the KV memory and checks what every request reads.",
            KVManagerTarget,
            {"blocks": 8, "block_size": 4},
            "kvlockstep.reference.kv_manager.manager:KVManager",
            Traits,
            KVManagerOptional,
            grouped_target,
            RULES,
        ),
        Contract(
            "kv_scheduler",
            "A scheduler together with the KV manager that it drives: requests go in, batches come out. The judge owns "
            "the KV memory, launches each batch at once and samples the tokens.",
            KVSchedulerTarget,
            {"blocks": 8, "block_size": 4, "budget": 8, "running": 4},
            "kvlockstep.reference.kv_scheduler.scheduler:KVScheduler",
            SchedulerTraits,
            KVSchedulerOptional,
            target_instead,
            SCHEDULER_RULES,
        ),
        Contract(
            "kv_index",
            "The index of a prefix-aware router: which worker has which blocks cached, by the KV events that the "
            "workers send. Events may be lost or repeated, and workers come and go.",
            KVIndexTarget,
            {"block_size": 4},
            "kvlockstep.reference.kv_index.index:KVIndex",
            IndexTraits,
            KVIndexOptional,
            rules=INDEX_RULES,
        ),
    )
}
