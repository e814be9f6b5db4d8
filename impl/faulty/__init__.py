"""Implementations that are wrong on purpose: what the suite must catch."""

from __future__ import annotations

from kvlockstep.impl.faulty import block_stack, kv_manager, slot_pool, slot_prefix_cache
from kvlockstep.impl.faulty.fault import Fault

FAULTS: dict[str, Fault] = {
    fault.id: fault for fault in (*slot_pool.FAULTS, *slot_prefix_cache.FAULTS, *block_stack.FAULTS, *kv_manager.FAULTS)
}
