"""kv_scheduler with groups: our manager in blocks under the reference scheduler, and with a batch in flight.

Behind a batch in flight a request gets blocks as far as its drafts may take it, but a window slides only when the batch
is back: a rejected draft takes the next forward back to positions that the window would have left.
"""

from __future__ import annotations

from typing import Any

from kvlockstep.impl.kv_manager.grouped.manager import AnnouncingBlockManager
from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.reference.kv_manager.events import Event
from kvlockstep.reference.kv_scheduler.grouped import Chunked, FullAndWindow, StatePool, TwoPools


class InBlocks:
    """Our manager, with its events, for a scheduler with groups."""

    event_listener: str | None = "set"
    manager: type[Any] = AnnouncingBlockManager
    _kv: Any

    def events(self) -> list[Event]:
        """Returns the manager's events since the last call."""
        told: list[Event] = self._kv.events()
        return told


class BlockWindows(InBlocks, TwoPools):
    """Full attention, and a window in a pool of its own, in blocks."""


class BlockChunks(InBlocks, Chunked):
    """Full attention and chunks, in blocks."""


class BlockStates(InBlocks, StatePool):
    """Full attention, a window and states, in blocks."""


class OverlapWindow(InBlocks, FullAndWindow, OverlapScheduler):
    """Full attention and a window, with a batch in flight, and drafts that only the device knows."""
