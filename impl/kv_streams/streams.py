"""Streams that can be held up: CUDA's, and their stand-in on the CPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

import torch

Work = Callable[[], object]
Event = object  # what another stream can wait for

MOST_GATES = 4096


class Queues(Protocol):
    """Streams by number. Nothing waits for what a gate holds up, except `synchronize`."""

    def submit(self, stream: int, work: Work) -> None:
        """Work for a stream."""

    def record(self, stream: int) -> Event:
        """An event behind what the stream has."""

    def wait(self, stream: int, event: Event) -> None:
        """Holds up what the stream gets from now on until the event."""

    def hold(self, stream: int) -> None:
        """Closes the stream's gate."""

    def let_go(self, stream: int) -> None:
        """Opens it."""

    def held(self) -> Sequence[int]:
        """The streams whose gates are closed."""

    def synchronize(self) -> None:
        """Waits for every stream; no gate may be closed."""


class CpuEvent:
    """Happens when its stream comes to it."""

    def __init__(self) -> None:
        self.happened = False


class CpuQueues:
    """Streams on the CPU, in one thread: every call runs what can run by then, a stream in its own order."""

    def __init__(self, count: int) -> None:
        self._queues: list[deque[Work | CpuEvent]] = [deque() for _ in range(count)]
        self._held: dict[int, CpuEvent] = {}

    def submit(self, stream: int, work: Work) -> None:
        """Work for a stream."""
        self._queues[stream].append(work)
        self._run()

    def record(self, stream: int) -> Event:
        """An event behind what the stream has."""
        event = CpuEvent()
        self.submit(stream, lambda: setattr(event, "happened", True))
        return event

    def wait(self, stream: int, event: Event) -> None:
        """Holds up what the stream gets from now on until the event."""
        assert isinstance(event, CpuEvent)
        self._queues[stream].append(event)

    def hold(self, stream: int) -> None:
        """Closes a gate."""
        self._held[stream] = CpuEvent()
        self.wait(stream, self._held[stream])

    def let_go(self, stream: int) -> None:
        """Opens it."""
        self._held.pop(stream).happened = True
        self._run()

    def held(self) -> Sequence[int]:
        """The streams whose gates are closed."""
        return list(self._held)

    def synchronize(self) -> None:
        """Nothing is left to run."""
        assert not any(self._queues)

    def _run(self) -> None:
        ran = True
        while ran:
            ran = False
            for queue in self._queues:
                while queue and not (isinstance(queue[0], CpuEvent) and not queue[0].happened):
                    first = queue.popleft()
                    if not isinstance(first, CpuEvent):
                        first()
                    ran = True


class CudaEvent(NamedTuple):
    """An event of CUDA, and that of the CPU stand-in."""

    real: torch.cuda.Event
    stand_in: Event


class CudaQueues:
    """`count` CUDA streams; a gate is a kernel that spins on a word of pinned memory, for each gate another word.

    The host waits for work that nothing holds up; a CPU stand-in that gets the same calls knows which work that is. So
    gates and events alone decide what runs before what, and a missing event does the same wrong every time. It costs a
    wait per call.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        from kvlockstep.impl.kernels import gate  # noqa: PLC0415

        self._gate = gate
        self._streams = [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]
        self._flags = torch.ones(MOST_GATES, dtype=torch.int32, pin_memory=True)
        self._gates = 0
        self._held: dict[int, torch.Tensor] = {}
        self._stand_in = CpuQueues(count)
        self._going: list[torch.cuda.Event] = []
        gate(self._flags[:1])
        torch.cuda.synchronize(device)

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the process there may be no device any more
            self._flags.fill_(1)
            self._wait_for_streams()

    def submit(self, stream: int, work: Work) -> None:
        """Work for a stream."""
        with torch.cuda.stream(self._streams[stream]):
            work()
        done = self._streams[stream].record_event()
        self._stand_in.submit(stream, partial(self._going.append, done))
        self._wait_for_going()

    def record(self, stream: int) -> Event:
        """An event behind what the stream has."""
        return CudaEvent(self._streams[stream].record_event(), self._stand_in.record(stream))

    def wait(self, stream: int, event: Event) -> None:
        """Holds up what the stream gets from now on until the event."""
        assert isinstance(event, CudaEvent)
        self._streams[stream].wait_event(event.real)
        self._stand_in.wait(stream, event.stand_in)

    def hold(self, stream: int) -> None:
        """Closes a gate; after MOST_GATES of them it waits, for words that no kernel looks at any more."""
        if self._gates == MOST_GATES:
            self._flags.fill_(1)
            self._wait_for_streams()
            self._gates = 0
        flag = self._flags[self._gates : self._gates + 1]
        self._gates += 1
        self._held[stream] = flag
        flag.fill_(0)
        with torch.cuda.stream(self._streams[stream]):
            self._gate(flag)
        self._stand_in.hold(stream)

    def let_go(self, stream: int) -> None:
        """Opens it."""
        self._held.pop(stream).fill_(1)
        self._stand_in.let_go(stream)
        self._wait_for_going()

    def held(self) -> Sequence[int]:
        """The streams whose gates are closed."""
        return list(self._held)

    def synchronize(self) -> None:
        """Waits for every stream; no gate may be closed."""
        self._stand_in.synchronize()
        self._wait_for_streams()

    def _wait_for_going(self) -> None:
        for done in self._going:
            done.synchronize()
        self._going.clear()

    def _wait_for_streams(self) -> None:
        for stream in self._streams:
            stream.synchronize()
