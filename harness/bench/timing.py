"""Timing as the speed rows need it: calls in turn within one process, the garbage collector off."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Call = Callable[[], Any]


@dataclass(frozen=True)
class Speed:
    """A figure in `unit`, the floor measured beside it (0: none), and the goal (0: none) for their ratio.

    Without a floor the goal is for the figure itself; `more_is_better` then tells its direction.
    """

    row: str
    unit: str
    ours: float
    floor: float
    goal: float
    more_is_better: bool = False

    @property
    def ratio(self) -> float:
        """Ours in floors; 0 without a floor."""
        return self.ours / self.floor if self.floor else 0.0


def best_of(calls: Sequence[Call], rounds: int, repeats: int) -> list[float]:
    """Seconds per call: the best round of each, the calls in turn within a round."""
    best = [float("inf")] * len(calls)
    with no_gc():
        for _ in range(rounds):
            for i, call in enumerate(calls):
                start = time.perf_counter()
                for _ in range(repeats):
                    call()
                best[i] = min(best[i], (time.perf_counter() - start) / repeats)
    return best


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
