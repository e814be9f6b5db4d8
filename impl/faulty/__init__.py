"""Implementations that are wrong on purpose: what the suite must catch."""

from __future__ import annotations

from kvlockstep.impl.faulty import (
    block_pool,
    block_stack,
    decode_graphs,
    kv_streams,
    paged_cache,
    radix_cache,
    slot_pool,
    slot_prefix_cache,
)
from kvlockstep.impl.faulty.fault import Fault
from kvlockstep.impl.faulty.kv_manager import admission as kv_admission
from kvlockstep.impl.faulty.kv_manager import basics as kv_manager
from kvlockstep.impl.faulty.kv_manager import events as kv_events
from kvlockstep.impl.faulty.kv_manager import keys as kv_keys
from kvlockstep.impl.faulty.kv_manager import lifecycle as kv_lifecycle
from kvlockstep.impl.faulty.kv_manager import rare as kv_rare
from kvlockstep.impl.faulty.kv_manager import release as kv_release
from kvlockstep.impl.faulty.kv_manager import sharing as kv_sharing
from kvlockstep.impl.faulty.kv_manager import tables as kv_tables
from kvlockstep.impl.faulty.kv_scheduler import basics as kv_scheduler
from kvlockstep.impl.faulty.kv_scheduler import batches as sched_batches
from kvlockstep.impl.faulty.kv_scheduler import memory as sched_memory
from kvlockstep.impl.faulty.kv_scheduler import overlap as sched_overlap
from kvlockstep.impl.faulty.kv_store import basics as kv_store

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
