"""The models by the name of their contract."""

from __future__ import annotations

from typing import Any

from kvlockstep.models.block_pool import BlockPoolModel
from kvlockstep.models.block_stack import BlockStackModel
from kvlockstep.models.core.model import Model
from kvlockstep.models.decode_graphs import DecodeGraphsModel
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.kv_store import KVStoreModel
from kvlockstep.models.kv_streams import KVStreamsModel
from kvlockstep.models.paged_cache import PagedCacheModel
from kvlockstep.models.radix_cache import RadixCacheModel
from kvlockstep.models.slot_pool import SlotPoolModel
from kvlockstep.models.slot_prefix_cache import SlotPrefixCacheModel

MODELS: dict[str, type[Model[Any]]] = {
    model.contract: model
    for model in (
        SlotPoolModel,
        SlotPrefixCacheModel,
        BlockStackModel,
        RadixCacheModel,
        BlockPoolModel,
        PagedCacheModel,
        KVStoreModel,
        DecodeGraphsModel,
        KVStreamsModel,
        KVManagerModel,
        KVSchedulerModel,
    )
}


def model_of(contract: str) -> type[Model[Any]]:
    """The model of a contract. Raises KeyError."""
    return MODELS[contract]
