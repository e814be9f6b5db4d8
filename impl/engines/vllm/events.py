"""KV cache events of vLLM's v1 engine (0.33.0), as they reach a listener over the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.impl.engines.wire import over_the_wire
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event

GPU, CPU, STORAGE = vllm.events.MEDIUM_GPU, vllm.events.MEDIUM_CPU, vllm.events.MEDIUM_STORAGE
POOL: Mapping[str, str | None] = {GPU: None}


def received(events: Sequence[Any], media: Mapping[str, str | None] = POOL) -> list[Event]:
    """The engine's events of `media` as a listener receives them. Each medium has a name here, the pool's is None."""
    heard = [event for event in events if getattr(event, "medium", GPU) in media]
    return [_neutral(event, media) for event in over_the_wire(vllm.events.KVEventBatch, heard)]


def _neutral(event: Any, media: Mapping[str, str | None]) -> Event:
    """The salt stands with a sequence's first block only, the adapter's name with every block."""
    if isinstance(event, vllm.events.AllBlocksCleared):
        return AllBlocksCleared()
    keys, medium, group = tuple(event.block_hashes), media[event.medium], event.group_idx
    if isinstance(event, vllm.events.BlockRemoved):
        return BlockRemoved(keys, medium, group)
    key = (
        event.lora_name.removeprefix(vllm.ADAPTER)
        if event.lora_name
        else ((event.extra_keys or [None])[0] or (None,))[0]
    )
    extra_key = None if key is None else int(key)
    tokens = tuple(event.token_ids)
    return BlockStored(keys, event.parent_block_hash, tokens, event.block_size, extra_key, medium, group)
