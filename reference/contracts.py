"""The names that adapters import, in one place: errors, protocols, events, traits."""

from kvlockstep.reference.block_stack import BlockStackTarget
from kvlockstep.reference.errors import (
    CaptureActive,
    ContractError,
    InvalidArgument,
    NotCached,
    NotFree,
    NotHeld,
    NotPinned,
    OutOfSlots,
    Pinned,
    UnknownSlot,
)
from kvlockstep.reference.kv.transfers import Fetching, Loading, TierUnits, Transfer
from kvlockstep.reference.kv_manager.contract import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    KVManagerOptional,
    KVManagerTarget,
)
from kvlockstep.reference.kv_manager.traits import Traits
from kvlockstep.reference.slot_pool import SlotPoolTarget
from kvlockstep.reference.slot_prefix_cache.contract import MISS, Match, SlotPrefixCacheTarget

__all__ = [
    "MISS",
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStackTarget",
    "BlockStored",
    "CaptureActive",
    "ContractError",
    "Event",
    "Fetching",
    "InvalidArgument",
    "KVManagerOptional",
    "KVManagerTarget",
    "Loading",
    "Match",
    "NotCached",
    "NotFree",
    "NotHeld",
    "NotPinned",
    "OutOfSlots",
    "Pinned",
    "SlotPoolTarget",
    "SlotPrefixCacheTarget",
    "TierUnits",
    "Traits",
    "Transfer",
    "UnknownSlot",
]
