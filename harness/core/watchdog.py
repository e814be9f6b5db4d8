"""Cuts off a call that does not return.

A timer signal looks at regular intervals whether the driver's step counter has moved. It costs the driver one
addition per step. Works in the main thread, on calls that return to the interpreter now and then; a call stuck in
compiled code is cut off by the parent process instead (core/isolation.py).
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from kvlockstep.core.system import CAN_LIMIT_TIME, seconds_without_a_core
from kvlockstep.models.core.calls import StepTimeout, enter_target

TICKS = 4
# Of a call that was cut off so many frames are told.
MOST_FRAMES = 3
# Looks come a little early or late; half a look of tolerance keeps the limit from growing by a whole one.
TOLERANCE = 0.5
# Hypothesis's hook into the garbage collector, where an exception is printed and lost.
COLLECTING = "gc_callback"


class Watchdog:
    """`beat` is what the driver counts up at every step; a step may take `limit` seconds, while it watches.

    Time in which the process waited for a core does not count, so that a busy machine makes no call hang.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.beat = 0
        self._seen = -1
        self._still = 0.0
        self._waited = seconds_without_a_core()
        self._watches = False

    def look(self, _signal: int, frame: FrameType | None) -> None:
        before, self._waited = self._waited, seconds_without_a_core()
        if self.beat != self._seen:
            self._seen, self._still = self.beat, 0.0
            return
        self._still += max(0.0, 1 - (self._waited - before) / (self.limit / TICKS))
        if self._still >= TICKS - TOLERANCE:
            self._still = 0.0
            if (inside := _frames_of_the_target(frame)) is not None:
                raise StepTimeout(*_cut_off_in(inside))

    @contextmanager
    def watching(self) -> Iterator[Watchdog]:
        """Watches the block, if it does not yet; does nothing outside the main thread, where no signal arrives.

        Whose timer was running before has it again afterwards, for as long as it had left.
        """
        elsewhere = threading.current_thread() is not threading.main_thread() or not CAN_LIMIT_TIME
        if self._watches or elsewhere:
            yield self
            return
        self._waited = seconds_without_a_core()
        former, left = signal.signal(signal.SIGALRM, self.look), signal.getitimer(signal.ITIMER_REAL)
        self._watches = True
        self._limit_to(self.limit)
        try:
            yield self
        finally:
            self._watches = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
            signal.setitimer(signal.ITIMER_REAL, *left)

    @contextmanager
    def at_most(self, seconds: float) -> Iterator[None]:
        """In the block a step may take `seconds`, or its usual limit if that is less."""
        usual = self.limit
        self._limit_to(min(seconds, usual))
        try:
            yield
        finally:
            self._limit_to(usual)

    def _limit_to(self, seconds: float) -> None:
        self.limit = seconds
        if self._watches:
            signal.setitimer(signal.ITIMER_REAL, seconds / TICKS, seconds / TICKS)


def _frames_of_the_target(frame: FrameType | None) -> list[FrameType] | None:
    """The frames of the target that is running, innermost first; None while a driver runs on a busy machine."""
    inside: list[FrameType] = []
    while frame is not None and frame.f_code.co_name != COLLECTING:
        if frame.f_code is enter_target.__code__:
            return inside
        # The loop of `for_each` stands between two frames of the target and is none.
        if frame.f_code.co_filename != enter_target.__code__.co_filename:
            inside.append(frame)
        frame = frame.f_back
    return None


def _cut_off_in(frames: Sequence[FrameType]) -> list[str]:
    """Lines that say where a call was cut off: its innermost frames, the last one last."""
    summary = traceback.StackSummary.extract((f, f.f_lineno) for f in reversed(frames[:MOST_FRAMES]))
    return ["cut off in", *(line for entry in summary.format() for line in entry.splitlines())]
