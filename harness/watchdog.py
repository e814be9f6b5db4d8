"""Cuts off a call that does not return.

A timer signal looks at regular intervals whether the driver's step counter has moved. It costs the driver one
addition per step. Works in the main thread, on calls that return to the interpreter now and then; a call stuck in
compiled code is cut off by the parent process of `fuzz` and of profile `deep` instead.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kvlockstep.models.model import StepTimeout

TICKS = 4
MODELS = "kvlockstep.models."


class Watchdog:
    """`beat` is what the driver counts up at every step; a step may take `limit` seconds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.beat = 0
        self._seen = -1
        self._still = 0

    def look(self, _signal: int, frame: FrameType | None) -> None:
        if self.beat != self._seen:
            self._seen, self._still = self.beat, 0
            return
        self._still += 1
        if self._still >= TICKS:
            self._still = 0
            if _in_a_model(frame):
                raise StepTimeout

    @contextmanager
    def watching(self) -> Iterator[Watchdog]:
        """Watches the block; does nothing outside the main thread, where no signal arrives."""
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
            yield self
            return
        former = signal.signal(signal.SIGALRM, self.look)
        signal.setitimer(signal.ITIMER_REAL, self.limit / TICKS, self.limit / TICKS)
        try:
            yield self
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)


def _in_a_model(frame: FrameType | None) -> bool:
    """Whether a target may be what takes so long: only models call it. A driver takes its time on a busy machine."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(MODELS):
            return True
        frame = frame.f_back
    return False
