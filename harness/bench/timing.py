"""Timing as the speed rows need it: calls in turn within one process, the garbage collector off."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Call = Callable[[], Any]


@dataclass(frozen=True)
class Speed:
    """A figure in `unit`, the floor measured beside it (0: none), and the goal (0: none) for their ratio.

    Without a floor the goal is for the figure itself; `more_is_better` then tells its direction. `peers` are the same
    figure of other systems, in turn with ours. `worst` is the longest single call in microseconds (0: not measured),
    see `worst_call`.
    """

    row: str
    unit: str
    ours: float
    floor: float
    goal: float
    more_is_better: bool = False
    peers: dict[str, float] = field(default_factory=dict)
    worst: float = 0.0

    @property
    def ratio(self) -> float:
        """Ours in floors; 0 without a floor."""
        return self.ours / self.floor if self.floor else 0.0

    @property
    def beside_peers(self) -> float:
        """Ours as a multiple of the best peer; 0 without peers."""
        if not self.peers:
            return 0.0
        return self.ours / (max if self.more_is_better else min)(self.peers.values())


def worst_call(make: Callable[[], Sequence[Call]], runs: int = 3) -> float:
    """Microseconds of the longest call of `make()`, whose calls are made one by one in `runs` equal runs.

    Of each call its quickest run counts: what the machine does in between hits another call every time, a pause of the
    code the same one.
    """
    quickest: list[int] = []
    for _ in range(runs):
        calls, times = make(), []
        with no_gc():
            for call in calls:
                start = time.thread_time_ns()
                call()
                times.append(time.thread_time_ns() - start)
        quickest = list(map(min, quickest, times)) if quickest else times
    return max(quickest) / 1000


def cpu_best_of(calls: Sequence[Call], rounds: int, repeats: int) -> list[float]:
    """As `best_of`, in CPU time of the process, which other load of the machine lengthens less."""
    return best_of(calls, rounds, repeats, time.process_time)


def best_of(
    calls: Sequence[Call], rounds: int, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds per call: the best round of each, the calls in turn within a round."""
    best = [float("inf")] * len(calls)
    with no_gc():
        for _ in range(rounds):
            for i, call in enumerate(calls):
                start = clock()
                for _ in range(repeats):
                    call()
                best[i] = min(best[i], (clock() - start) / repeats)
    return best


def cpu_medians(calls: Sequence[Call], rounds: int) -> list[float]:
    """CPU seconds of each call: the median round, the calls in turn within a round."""
    times: list[list[float]] = [[] for _ in calls]
    with no_gc():
        for _ in range(rounds):
            for i, call in enumerate(calls):
                start = time.process_time()
                call()
                times[i].append(time.process_time() - start)
    return [statistics.median(rounds_of) for rounds_of in times]


@contextmanager
def no_gc() -> Iterator[None]:
    """Cyclic garbage collection is off inside."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
