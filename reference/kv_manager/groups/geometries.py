"""Geometries of the reference with groups: factories `make(blocks, block_size)`, which say what the groups are."""

from __future__ import annotations

from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.kv_manager.groups.fine import FineManager
from kvlockstep.reference.kv_manager.groups.manager import GroupedManager
from kvlockstep.reference.kv_manager.groups.tiered import TieredGroupManager


class FullAndWindow(GroupedManager):
    """Full attention and a window of 3 positions, in one pool: smaller than a block, as large, or larger."""

    def __init__(self, blocks: int, block_size: int) -> None:
        groups = Group("full", block_size), Group("window", block_size, reach=3)
        super().__init__(groups, {"kv": 2 * blocks})


class WindowAlone(GroupedManager):
    """A window of 4 positions and nothing else."""

    def __init__(self, blocks: int, block_size: int) -> None:
        super().__init__((Group("window", block_size, reach=4),), {"kv": blocks})


class TwoWindows(GroupedManager):
    """Full attention with two windows, of which one has smaller blocks, in one pool."""

    def __init__(self, blocks: int, block_size: int) -> None:
        small = max(1, block_size // 2)
        groups = Group("full", block_size), Group("window", small, reach=2), Group("window", block_size, reach=5)
        super().__init__(groups, {"kv": 4 * blocks})


class Chunked(GroupedManager):
    """Full attention and chunks of two blocks."""

    def __init__(self, blocks: int, block_size: int) -> None:
        groups = Group("full", block_size), Group("chunked", block_size, reach=2 * block_size)
        super().__init__(groups, {"kv": 2 * blocks})


class TwoPools(GroupedManager):
    """Full attention, and a window of 5 positions in a pool of its own, which is scarcer."""

    def __init__(self, blocks: int, block_size: int) -> None:
        groups = Group("full", block_size), Group("window", block_size, reach=5, pool="window")
        super().__init__(groups, {"kv": blocks, "window": max(2, blocks * 2 // 3)})


class FullAndState(GroupedManager):
    """Full attention and a state, in one pool; the grid of the state is a block of tokens."""

    def __init__(self, blocks: int, block_size: int) -> None:
        super().__init__((Group("full", block_size), Group("state", block_size)), {"kv": 2 * blocks})


class StatePool(GroupedManager):
    """Full attention, a window, and states in a pool of their own on a grid of two blocks."""

    def __init__(self, blocks: int, block_size: int) -> None:
        groups = (
            Group("full", block_size),
            Group("window", block_size, reach=3),
            Group("state", 2 * block_size, pool="states"),
        )
        super().__init__(groups, {"kv": 2 * blocks, "states": max(3, blocks // 2)})


class FullAndFineState(FineManager):
    """Full attention with two hashes to a block, and a state with the grid of a hash, in one pool."""

    def __init__(self, blocks: int, block_size: int) -> None:
        unit = max(1, block_size // 2)
        super().__init__((Group("full", block_size), Group("state", unit)), {"kv": 2 * blocks}, unit)


class TieredWindow(FullAndWindow, TieredGroupManager):
    """Full attention and a window, in one pool, with a tier."""


class TieredWindows(TwoWindows, TieredGroupManager):
    """Full attention with two windows, in one pool, with a tier."""


class TieredState(FullAndState, TieredGroupManager):
    """Full attention and a state, in one pool, with a tier."""


class TieredPools(TwoPools, TieredGroupManager):
    """Full attention, and a window in a pool of its own, with a tier."""


class TieredStates(StatePool, TieredGroupManager):
    """Full attention, a window, and states in a pool of their own, with a tier."""
