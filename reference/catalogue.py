"""The contracts by name: what a target must offer, and the parameters of its factory."""

from __future__ import annotations

from dataclasses import dataclass

from kvlockstep.reference.contracts import (
    BlockStackTarget,
    KVManagerTarget,
    SlotPoolTarget,
    SlotPrefixCacheTarget,
)


@dataclass(frozen=True)
class Contract:
    """A contract's name, the protocol of its targets, and its factory's parameters with sizes to try it with."""

    name: str
    protocol: type
    probe: dict[str, object]


CONTRACTS = {
    contract.name: contract
    for contract in (
        Contract("slot_pool", SlotPoolTarget, {"slots": 4}),
        Contract("slot_prefix_cache", SlotPrefixCacheTarget, {"capacity": 4, "slots": 4, "positions": 4}),
        Contract("block_stack", BlockStackTarget, {"blocks": 4}),
        Contract("kv_manager", KVManagerTarget, {"blocks": 8, "block_size": 4}),
    )
}
