"""The contracts by name: what a target must offer, and the parameters of its factory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvlockstep.reference.block_pool.contract import BlockPoolTarget
from kvlockstep.reference.block_stack import BlockStackTarget
from kvlockstep.reference.decode_graphs.contract import DecodeGraphsTarget
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv_manager.contract import KV_OPTIONAL, KVManagerOptional, KVManagerTarget, Traits
from kvlockstep.reference.kv_scheduler.contract import (
    SCHEDULER_OPTIONAL,
    KVSchedulerOptional,
    KVSchedulerTarget,
    SchedulerTraits,
    drafting_target,
)
from kvlockstep.reference.kv_store import KVStoreTarget
from kvlockstep.reference.kv_streams.contract import KVStreamsTarget
from kvlockstep.reference.paged_cache.contract import PagedCacheTarget
from kvlockstep.reference.radix_cache.contract import RadixCacheTarget
from kvlockstep.reference.slot_pool import SlotPoolTarget
from kvlockstep.reference.slot_prefix_cache import SlotPrefixCacheTarget

SHAPE = KVShape(2, 1, 2, "int8")


@dataclass(frozen=True)
class Contract:
    """A contract's name, the protocol of its targets, and its factory's parameters with sizes to try it with.

    Where targets declare `traits`, a dataclass, `announced` names the trait of each method that may be left out, and
    `optional` is the protocol of those that `protocol` does not have. `instead` answers the protocol whose methods take
    the place of those of the same name under the traits that it is given, or None.
    """

    name: str
    protocol: type
    probe: dict[str, object]
    traits: type | None = None
    optional: type | None = None
    announced: Mapping[str, str] = field(default_factory=dict)
    instead: Callable[[Any], type | None] = lambda _traits: None


CONTRACTS = {
    contract.name: contract
    for contract in (
        Contract("slot_pool", SlotPoolTarget, {"slots": 4}),
        Contract("slot_prefix_cache", SlotPrefixCacheTarget, {"capacity": 4, "slots": 4, "positions": 4}),
        Contract("block_stack", BlockStackTarget, {"blocks": 4}),
        Contract("radix_cache", RadixCacheTarget, {"pages": 4, "page_size": 2}),
        Contract("block_pool", BlockPoolTarget, {"blocks": 4, "block_size": 2, "hash_function": None}),
        Contract("paged_cache", PagedCacheTarget, {"blocks": 4, "block_size": 2, "policy": "lru", "shape": SHAPE}),
        Contract(
            "kv_store",
            KVStoreTarget,
            {"blocks": 4, "block_size": 2, "host_blocks": 2, "shape": SHAPE, "layout": "layer_major"},
        ),
        Contract("decode_graphs", DecodeGraphsTarget, {"rows": 2, "width": 2, "blocks": 4, "block_size": 2}),
        Contract("kv_streams", KVStreamsTarget, {"blocks": 4, "host_blocks": 2}),
        Contract("kv_manager", KVManagerTarget, {"blocks": 8, "block_size": 4}, Traits, KVManagerOptional, KV_OPTIONAL),
        Contract(
            "kv_scheduler",
            KVSchedulerTarget,
            {"blocks": 8, "block_size": 4, "budget": 8, "running": 4},
            SchedulerTraits,
            KVSchedulerOptional,
            SCHEDULER_OPTIONAL,
            drafting_target,
        ),
    )
}
