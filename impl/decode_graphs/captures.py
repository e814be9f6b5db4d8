"""Captured graphs: CUDA's, and a stand-in on the CPU, which keeps calls on memory and runs them when replayed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch

Work = Callable[[], None]


class Capture(Protocol):
    """A capture that has begun when it is made."""

    def end(self) -> Work:
        """Ends the capture and returns the function that replays it."""


class CudaCapture:
    """Captures `work`; the capture stays active until `end`."""

    def __init__(self, work: Work) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._context: AbstractContextManager[None] = torch.cuda.graph(self._graph)
        work()  # compiles, loads and allocates what may not be compiled, loaded or allocated during a capture
        self._context.__enter__()
        work()

    def end(self) -> Work:
        """Ends the capture and returns the function that replays it."""
        self._context.__exit__(None, None, None)
        replay: Work = self._graph.replay
        return replay


class CpuCapture:
    """Keeps `work`, which must be bound to the memory that it is about; a replay calls it."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def end(self) -> Work:
        """Ends the capture and returns the function that replays it."""
        return self._work


def begin(work: Work, device: torch.device) -> Capture:
    """Begins a capture of `work`, which must do no harm when it runs now on idle inputs."""
    return CudaCapture(work) if device.type == "cuda" else CpuCapture(work)
