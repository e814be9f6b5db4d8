"""Implementations that are wrong on purpose: what the suite must catch."""

from __future__ import annotations

from kvlockstep.impl.faulty import (
    block_pool,
    block_stack,
    decode_graphs,
    kv_admission,
    kv_events,
    kv_keys,
    kv_lifecycle,
    kv_manager,
    kv_rare,
    kv_release,
    kv_scheduler,
    kv_sharing,
    kv_store,
    kv_streams,
    kv_tables,
    paged_cache,
    radix_cache,
    sched_batches,
    sched_memory,
    sched_overlap,
    slot_pool,
    slot_prefix_cache,
)
from kvlockstep.impl.faulty.fault import Fault

MODULES = (
    slot_pool,
    slot_prefix_cache,
    block_stack,
    radix_cache,
    block_pool,
    paged_cache,
    kv_store,
    decode_graphs,
    kv_streams,
    kv_manager,
    kv_keys,
    kv_lifecycle,
    kv_sharing,
    kv_release,
    kv_tables,
    kv_admission,
    kv_rare,
    kv_events,
    kv_scheduler,
    sched_memory,
    sched_batches,
    sched_overlap,
)

FAULTS: dict[str, Fault] = {fault.id: fault for module in MODULES for fault in module.FAULTS}
