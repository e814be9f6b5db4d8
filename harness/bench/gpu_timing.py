"""Device and host times of calls on a GPU, and the speed that its memory reaches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import triton
import triton.language as tl

ROUNDS = 15
DEVICE = torch.device("cuda")

Call = Callable[[], object]


@triton.jit
def _read(words, total, never, size: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    found = tl.load(words + at, mask=at < total, other=0)
    tl.store(words + at, found, mask=(found == never) & (at < total))


def device_us(calls: Sequence[Call], rounds: int = ROUNDS, repeats: int = 20) -> float:
    """Microseconds on the device for one of these calls: the median of graph replays with all of them in turn."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls:
            call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(rounds + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / repeats / len(calls))
    return float(statistics.median(times[2:]))


def called_us(calls: Sequence[Call], rounds: int = ROUNDS, repeats: int = 5) -> float:
    """As above, for plain calls, each longer on the device than on the host."""
    times = []
    for _ in range(rounds + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            for call in calls:
                call()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / repeats / len(calls))
    return float(statistics.median(times[2:]))


def host_us(call: Call, repeats: int = 50) -> float:
    """Microseconds from call to call, the device kept busy: the median of rounds."""
    return in_turn_us([call], repeats)[0]


def in_turn_us(calls: Sequence[Call], repeats: int) -> list[float]:
    """Times several calls: medians of rounds that take them in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS + 2):
        for taken, call in zip(times, calls, strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            torch.cuda.synchronize()
            taken.append(1e6 * (time.perf_counter() - start) / repeats)
    return [statistics.median(taken[2:]) for taken in times]


def gbs(moved: float, us: float) -> float:
    """GB/s of so many bytes in so many microseconds."""
    return moved / us / 1e3


def memcpy_gbs(size: int, sets: int) -> float:
    """Bytes read and written per second by copy_ between contiguous tensors of `size` bytes, in turn among `sets`.

    The better of plain calls and of a graph, where the driver takes another way for large copies.
    """
    pairs = [
        [torch.empty(size // 8, dtype=torch.int64, device=DEVICE).random_() for _ in range(2)] for _ in range(sets)
    ]
    calls = [partial(target.copy_, source) for source, target in pairs]
    return gbs(2 * size, min(device_us(calls), called_us(calls)))


def read_gbs(size: int) -> float:
    """Bytes per second of a kernel that does nothing but read."""
    words = torch.empty(size // 8, dtype=torch.int64, device=DEVICE).random_()
    grid = (triton.cdiv(len(words), 4096),)
    return gbs(size, device_us([lambda: _read[grid](words, len(words), -(1 << 62) - 12345, size=4096, num_warps=8)]))
