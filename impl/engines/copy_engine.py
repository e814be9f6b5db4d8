"""What stands in the place of an engine's copies: they are written down, and done when somebody says so."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from kvlockstep.reference.kv.transfers import Transfer


class Event:
    """Says when a transfer is done. Whoever waits for it goes on when it is, and `fence` notes that.

    Engines look at events in the order of their stream: what ends earlier than what is in front of it is heard later.
    """

    def __init__(self, id: Hashable = None, fence: list[Hashable] | None = None, done: bool = False) -> None:
        self.done = done
        self._id, self._fence = id, fence

    def record(self, *_: Any) -> None:
        """What is recorded is known by whom it is for."""

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        if not self.done and self._fence is not None:
            self._fence.append(self._id)
        self.done = True


class Copies:
    """What was submitted and not taken yet, and `fence`: the transfers that the engine has waited for.

    `events` are those of the transfers that have not been told to be done.
    """

    def __init__(self) -> None:
        self.fence: list[Hashable] = []
        self.submitted: list[Transfer] = []
        self.events: dict[Hashable, Event] = {}

    def event(self, id: Hashable) -> Event:
        """A new event, by which a transfer is told to be done."""
        self.events[id] = Event(id, self.fence)
        return self.events[id]

    def take(self) -> list[Transfer]:
        """Returns what was submitted since the last time."""
        submitted, self.submitted = self.submitted, []
        return submitted
