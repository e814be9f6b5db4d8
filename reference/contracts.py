"""Everything that an adapter imports, in one place: protocols, traits, errors, and the types that it builds or reads.

It needs the standard library only. `kvlockstep explain NAME` describes each of these classes.
"""

from kvlockstep.reference.block_pool.contract import (
    AlreadyCached,
    BlockPoolTarget,
    ExtraKey,
    InUse,
    Prefix,
    RequestKeysTarget,
)
from kvlockstep.reference.block_stack import BlockStackTarget
from kvlockstep.reference.decode_graphs.contract import DecodeGraphsTarget, Lane, NotCaptured, StaleGraph
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
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv.transfers import Fetching, Loading, TierUnits, Transfer
from kvlockstep.reference.kv_index.contract import IndexTraits, KVIndexOptional, KVIndexTarget, Worker
from kvlockstep.reference.kv_manager.contract import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    KVManagerOptional,
    KVManagerTarget,
)
from kvlockstep.reference.kv_manager.groups.contract import (
    Admitted,
    Group,
    GroupedTarget,
    LatePooledTarget,
    PooledTarget,
    StateTarget,
    Step,
    needed,
)
from kvlockstep.reference.kv_manager.traits import Traits
from kvlockstep.reference.kv_scheduler.contract import (
    END_TOKEN,
    NO_DRAFTS,
    PAD_DRAFT,
    Batch,
    Item,
    KVSchedulerOptional,
    KVSchedulerTarget,
)
from kvlockstep.reference.kv_scheduler.traits import SchedulerTraits
from kvlockstep.reference.kv_store.contract import KVStoreOptional, KVStoreTarget, Rows, StoreTraits
from kvlockstep.reference.kv_streams.contract import KVStreamsTarget
from kvlockstep.reference.kv_tier.contract import (
    AllChunksCleared,
    ChunkRemoved,
    ChunkStored,
    Key,
    KVTierBytes,
    KVTierOptional,
    KVTierTarget,
    LoadPlan,
    StorePlan,
    TierTraits,
)
from kvlockstep.reference.kv_write.contract import KVWriteOptional, KVWriteTarget, WriteTraits
from kvlockstep.reference.kv_write.geometry import Geometry
from kvlockstep.reference.paged_alloc.contract import Ints, PagedAllocTarget
from kvlockstep.reference.paged_cache.contract import (
    Allocation,
    Growth,
    PagedCacheTarget,
    PagedStatistics,
    SequenceLive,
    UnknownSequence,
)
from kvlockstep.reference.radix_cache.contract import NotLocked, RadixCacheTarget, RadixMatch, RadixSizes, StaleHandle
from kvlockstep.reference.slot_mapping.contract import MappingTraits, SlotMappingOptional, SlotMappingTarget
from kvlockstep.reference.slot_pool import SlotPoolTarget
from kvlockstep.reference.slot_prefix_cache.contract import MISS, Match, SlotPrefixCacheTarget

__all__ = [
    "END_TOKEN",
    "MISS",
    "NO_DRAFTS",
    "PAD_DRAFT",
    "Admitted",
    "AllBlocksCleared",
    "AllChunksCleared",
    "Allocation",
    "AlreadyCached",
    "Batch",
    "BlockPoolTarget",
    "BlockRemoved",
    "BlockStackTarget",
    "BlockStored",
    "CaptureActive",
    "ChunkRemoved",
    "ChunkStored",
    "ContractError",
    "DecodeGraphsTarget",
    "Event",
    "ExtraKey",
    "Fetching",
    "Geometry",
    "Group",
    "GroupedTarget",
    "Growth",
    "InUse",
    "IndexTraits",
    "Ints",
    "InvalidArgument",
    "Item",
    "KVIndexOptional",
    "KVIndexTarget",
    "KVManagerOptional",
    "KVManagerTarget",
    "KVSchedulerOptional",
    "KVSchedulerTarget",
    "KVShape",
    "KVStoreOptional",
    "KVStoreTarget",
    "KVStreamsTarget",
    "KVTierBytes",
    "KVTierOptional",
    "KVTierTarget",
    "KVWriteOptional",
    "KVWriteTarget",
    "Key",
    "Lane",
    "LatePooledTarget",
    "LoadPlan",
    "Loading",
    "MappingTraits",
    "Match",
    "NotCached",
    "NotCaptured",
    "NotFree",
    "NotHeld",
    "NotLocked",
    "NotPinned",
    "OutOfSlots",
    "PagedAllocTarget",
    "PagedCacheTarget",
    "PagedStatistics",
    "Pinned",
    "PooledTarget",
    "Prefix",
    "RadixCacheTarget",
    "RadixMatch",
    "RadixSizes",
    "RequestKeysTarget",
    "Rows",
    "SchedulerTraits",
    "SequenceLive",
    "SlotMappingOptional",
    "SlotMappingTarget",
    "SlotPoolTarget",
    "SlotPrefixCacheTarget",
    "StaleGraph",
    "StaleHandle",
    "StateTarget",
    "Step",
    "StorePlan",
    "StoreTraits",
    "TierTraits",
    "TierUnits",
    "Traits",
    "Transfer",
    "UnknownSequence",
    "UnknownSlot",
    "Worker",
    "WriteTraits",
    "needed",
]
