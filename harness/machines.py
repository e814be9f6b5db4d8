"""The Hypothesis machines, for suites that run or extend them."""

from __future__ import annotations

from kvlockstep.drivers.stateful import LockstepMachine, machine_for
from kvlockstep.models.model import Factory
from kvlockstep.models.registry import model_of
from kvlockstep.targets import check_contract


def machine(contract: str, target: Factory | None = None) -> type[LockstepMachine]:
    """A rule-based state machine of a contract, one rule per command, on the factory `target` if given.

    Use `machine("kv_manager", make).TestCase` in pytest, or subclass it, add rules and invariants, and set the
    class attribute `target`. Raises UsageError for an unknown contract.
    """
    return machine_for(model_of(check_contract(contract)), target)


SlotPoolMachine = machine("slot_pool")
SlotPrefixCacheMachine = machine("slot_prefix_cache")
BlockStackMachine = machine("block_stack")
RadixCacheMachine = machine("radix_cache")
BlockPoolMachine = machine("block_pool")
PagedCacheMachine = machine("paged_cache")
KvStoreMachine = machine("kv_store")
DecodeGraphsMachine = machine("decode_graphs")
KvStreamsMachine = machine("kv_streams")
KvManagerMachine = machine("kv_manager")
KvSchedulerMachine = machine("kv_scheduler")

__all__ = [
    "BlockPoolMachine",
    "BlockStackMachine",
    "DecodeGraphsMachine",
    "KvManagerMachine",
    "KvSchedulerMachine",
    "KvStoreMachine",
    "KvStreamsMachine",
    "LockstepMachine",
    "PagedCacheMachine",
    "RadixCacheMachine",
    "SlotPoolMachine",
    "SlotPrefixCacheMachine",
    "machine",
]
