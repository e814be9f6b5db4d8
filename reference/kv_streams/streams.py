"""Streams as a device runs them: each in its own order, against the others in any, unless events say otherwise."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

Work = Callable[[], None]


class Event:
    """Done when the stream that it was recorded in has come to it."""

    def __init__(self) -> None:
        self.done = False


class Streams:
    """Streams by name. Whatever can run runs at once, so that work that does not wait is too early every time.

    Who waits for an event runs as soon as it is done, before what comes behind it in its own stream.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._queues: dict[str, deque[Work | Event]] = {name: deque() for name in names}
        self._gates: dict[str, Event] = {}
        self._busy: set[str] = set()

    def submit(self, stream: str, work: Work) -> None:
        """Puts work behind what the stream has."""
        self._queues[stream].append(work)
        self._run()

    def record(self, stream: str) -> Event:
        """An event that is done once the stream has done what it has now."""
        event = Event()

        def finish() -> None:
            event.done = True
            self._run()

        self.submit(stream, finish)
        return event

    def wait(self, stream: str, event: Event) -> None:
        """Work given to the stream from now on waits for the event."""
        self._queues[stream].append(event)
        self._run()

    def hold(self, stream: str) -> None:
        """Closes a gate: what the stream gets from now on waits until it is let go."""
        self._gates[stream] = Event()
        self.wait(stream, self._gates[stream])

    def let_go(self, stream: str) -> None:
        """Opens the gate."""
        self._gates.pop(stream).done = True
        self._run()

    def held(self) -> list[str]:
        """The streams whose gates are closed."""
        return list(self._gates)

    def _run(self) -> None:
        ran = True
        while ran:
            ran = False
            for stream, queue in self._queues.items():
                while queue and stream not in self._busy:
                    first = queue[0]
                    if isinstance(first, Event):
                        if not first.done:
                            break
                        queue.popleft()
                        continue
                    queue.popleft()
                    self._busy.add(stream)
                    first()
                    self._busy.remove(stream)
                    ran = True
