"""kv_scheduler with groups: our manager in blocks under the reference scheduler, and with a batch in flight.

Behind a batch in flight a request gets blocks as far as its drafts may take it, but a window slides only when the batch
is back: a rejected draft takes the next forward back to positions that the window would have left.
"""

from __future__ import annotations

from typing import Any

from kvlockstep.impl.kv_manager.grouped.manager import GroupedBlockManager
from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.reference.kv_scheduler.grouped import Chunked, FullAndWindow, StatePool, TwoPools


class BlockWindows(TwoPools):
    """Full attention, and a window in a pool of its own, in blocks."""

    manager = GroupedBlockManager


class BlockChunks(Chunked):
    """Full attention and chunks, in blocks."""

    manager = GroupedBlockManager


class BlockStates(StatePool):
    """Full attention, a window and states, in blocks."""

    manager = GroupedBlockManager


class OverlapWindow(FullAndWindow, OverlapScheduler):
    """Full attention and a window, with a batch in flight, and drafts that only the device knows."""

    manager: type[Any] = GroupedBlockManager
