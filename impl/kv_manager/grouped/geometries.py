"""Geometries of the manager with groups: factories `make(blocks, block_size)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvlockstep.impl.kv_manager.grouped.manager import AnnouncingBlockManager, GroupedBlockManager
from kvlockstep.reference.kv_manager.groups.contract import Group


def make_window(blocks: int, block_size: int) -> AnnouncingBlockManager:
    """Full attention and a window of a block and a half, in one pool."""
    groups = Group("full", block_size), Group("window", block_size, reach=block_size + max(1, block_size // 2))
    return AnnouncingBlockManager(groups, {"kv": 2 * blocks})


def make_windows(blocks: int, block_size: int) -> AnnouncingBlockManager:
    """Two windows in pools of their own, one with smaller blocks, and no full attention."""
    small = max(1, block_size // 2)
    groups = Group("window", block_size, reach=5, pool="large"), Group("window", small, reach=2, pool="small")
    return AnnouncingBlockManager(groups, {"large": blocks, "small": blocks + 1})


def make_chunked(blocks: int, block_size: int) -> AnnouncingBlockManager:
    """Full attention, and chunks that end within a block, in one pool."""
    groups = Group("full", block_size), Group("chunked", block_size, reach=block_size + 1)
    return AnnouncingBlockManager(groups, {"kv": 2 * blocks})


def make_state(blocks: int, block_size: int) -> AnnouncingBlockManager:
    """Full attention, a window and a state on a grid of two blocks, which has a pool of its own."""
    groups = (
        Group("full", block_size),
        Group("window", block_size, reach=3),
        Group("state", 2 * block_size, pool="states"),
    )
    return AnnouncingBlockManager(groups, {"kv": 2 * blocks, "states": max(3, blocks // 2)})


def make_tensors(blocks: int, block_size: int, device: str = "cpu", layout: str = "layer_major") -> GroupedBlockManager:
    """Full attention, a window and a state on a grid of two blocks, in one pool whose blocks are those of a KVStore."""
    groups = Group("full", block_size), Group("window", block_size, reach=3), Group("state", 2 * block_size)
    return GroupedTensorManager(groups, {"kv": 2 * blocks + 2}, device, layout)


class GroupedTensorManager(GroupedBlockManager):
    """A GroupedBlockManager whose KV lies in `memory`, a StoreMemory on `device` for each pool, in `layout`."""

    def __init__(self, groups: tuple[Group, ...], pools: Mapping[str, int], device: str, layout: str) -> None:
        from kvlockstep.impl.kv_store.oracle_memory import StoreMemory  # noqa: PLC0415  torch is an extra

        rows = {pool: max(group.block_size for group in groups if group.pool == pool) for pool in pools}
        self.memory: dict[str, Any] = {
            pool: StoreMemory(blocks, rows[pool], layout, device) for pool, blocks in pools.items()
        }
        super().__init__(groups, pools)
