"""`python -m kvlockstep.gpu_report [FILE [PART ...]]`: what the GPU side does on this card, with its ceilings."""

from __future__ import annotations

import datetime
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from kvlockstep.drivers.random_walk import random_walk
from kvlockstep.errors import UsageError
from kvlockstep.gpu_sanitizing import sanitized
from kvlockstep.impl.block_stack import BlockStack
from kvlockstep.impl.decode_graphs import DecodeGraphs
from kvlockstep.impl.faulty.narrow_offsets import NarrowOffsets
from kvlockstep.impl.kv_far import FarStore
from kvlockstep.impl.kv_kernels import acquire, stamp_verify
from kvlockstep.impl.kv_store import KVStore
from kvlockstep.models.model import Factory
from kvlockstep.models.registry import model_of
from kvlockstep.reference.paged_contract import LAYOUTS, KVShape
from kvlockstep.targets import BUILT_IN, ENGINES, on_device, resolve
from kvlockstep.watchdog import Watchdog

SHAPE = KVShape(32, 8, 128, "bfloat16")
BLOCK_SIZE = 16
BLOCK_BYTES = BLOCK_SIZE * SHAPE.token_bytes
PAIRS = (64, 256, 2048)
REQUESTS = 256
ROUNDS = 15
MACHINE_STEPS = 100_000
MACHINE_SECONDS = 100
FAR_STEPS = 3_000
FAR_BYTES = 8 * ((1 << 32) + (1 << 30))
DEVICE = torch.device("cuda")
FIGURES_SAY = f"""\
KV of {SHAPE.layers} layers x {SHAPE.heads} heads x {SHAPE.head_dim} {SHAPE.dtype}, blocks of {BLOCK_SIZE} tokens.
Device times are medians of graph replays, in turn over blocks that no cache holds; bytes count as read and as written.
Every ceiling was measured in the same run. The blocks of a copy are scattered unless they are called neighbours. "its
reads, then its writes" are the same blocks, read by one kernel and written by another: what the memory gives that
pattern when it never turns from reads to writes.
"""
SANITIZERS_SAY = """\
The errors that each tool finds where one is planted, and in the kernels' tests. racecheck looks at shared memory, the
sanitizer of torch at what its own operations do on streams, not at Triton's launches.
"""

Call = Callable[[], object]


class Row(NamedTuple):
    """A figure, what it is measured against, and the goal for their ratio; `more` is better, or less."""

    figure: str
    unit: str
    ours: float
    ceiling: float | None = None
    of: str = ""
    goal: float | None = None
    more: bool = True


@triton.jit
def _read(words, total, never, size: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    found = tl.load(words + at, mask=at < total, other=0)
    tl.store(words + at, found, mask=(found == never) & (at < total))


@triton.jit
def _half_copy(
    words, pairs, plane_stride, block_stride, chunks, count, never, target: tl.constexpr, size: tl.constexpr
):
    program = tl.program_id(0)
    pair = program // chunks % count
    block = tl.load(pairs + 2 * pair + target)
    at = (program // chunks // count).to(tl.int64) * plane_stride + block * block_stride
    at += program % chunks * size + tl.arange(0, size)
    if target:
        tl.store(words + at, at)
    else:
        found = tl.load(words + at)
        tl.store(words + at, found, mask=found == never)


@triton.jit
def _empty(words):
    pass


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
    """The same for plain calls, each longer on the device than on the host."""
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
    """The same of several calls: medians of rounds that take them in turn."""
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


def copies(pairs: int, blocks: int, scattered: bool = True) -> Iterator[list[tuple[int, int]]]:
    """Lists of pairs that use every block once, so that no cache holds what the next one needs."""
    order = list(range(blocks))
    if scattered:
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(7)).tolist()
    for first in range(0, blocks - 2 * pairs + 1, 2 * pairs):
        yield list(zip(order[first : first + pairs], order[first + pairs : first + 2 * pairs], strict=True))


def halves_gbs(store: KVStore, lists: Sequence[torch.Tensor]) -> float:
    """Bytes per second if the reads of these copies, alone, and then their writes, alone, went as fast as they go.

    Memory that turns from reads to writes, and back, does not beat it.
    """
    moves = store.moves
    assert moves is not None
    words, plane, block = moves._device
    size, us = 512, 0.0
    chunks, never = moves._width // size, -(1 << 62) - 12345
    for target in (0, 1):
        calls = [
            partial(
                _half_copy[(len(pairs) * moves._count * chunks,)],
                *(words, pairs, plane, block, chunks, len(pairs), never),
                target=target,
                size=size,
                num_warps=2,
            )
            for pairs in lists
        ]
        us += device_us(calls)
    return gbs(2 * len(lists[0]) * BLOCK_BYTES, us)


def copy_rows(blocks: int = 4096) -> Iterator[Row]:
    """copy_blocks of scattered pairs: K and V of all layers in one launch."""
    whole = memcpy_gbs(1 << 30, 2)
    yield Row("memcpy of 1 GiB", "GB/s", whole)
    ceilings = {pairs: memcpy_gbs(pairs * BLOCK_BYTES, max(1, min(8, 2048 // pairs))) for pairs in PAIRS}
    for layout in LAYOUTS:
        store = KVStore(blocks, BLOCK_SIZE, 0, SHAPE, layout, device="cuda")
        store.kv.view(torch.int16).random_()
        moves = store.moves
        assert moves is not None
        for pairs in PAIRS:
            lists = list(copies(pairs, blocks))
            sent = [torch.tensor(chosen, device=DEVICE) for chosen in lists]
            kernel = device_us([partial(moves._within.many, each) for each in sent])
            halves = halves_gbs(store, sent)
            sent = [torch.tensor(chosen, device=DEVICE) for chosen in copies(pairs, blocks, scattered=False)]
            straight = device_us([partial(moves._within.many, each) for each in sent])
            moved = 2 * pairs * BLOCK_BYTES
            label = f"copy_blocks, {pairs} pairs, {layout}"
            yield Row(label, "GB/s", gbs(moved, kernel), whole, "memcpy of 1 GiB", 0.95)
            yield Row(label, "GB/s", gbs(moved, kernel), ceilings[pairs], "memcpy of the same bytes")
            yield Row(label, "GB/s", gbs(moved, kernel), halves, "its reads, then its writes")
            yield Row(f"{label}, neighbours", "GB/s", gbs(moved, straight), whole, "memcpy of 1 GiB")
            called = host_us(_in_turn(store.copy_blocks, lists), repeats=10)
            yield Row(f"{label}, called from Python", "GB/s", gbs(moved, called), whole, "memcpy of 1 GiB")
        plain = _without_kernels(store)
        lists = list(copies(64, blocks))
        us = host_us(_in_turn(plain.copy_blocks, lists), repeats=10)
        yield Row(f"index_copy_ of 64 pairs, {layout}", "GB/s", gbs(128 * BLOCK_BYTES, us), whole, "memcpy of 1 GiB")
        del store, moves, plain, sent
        torch.cuda.empty_cache()


def _in_turn(call: Callable[[Any], object], arguments: Sequence[Any]) -> Call:
    turn = itertools.cycle(arguments)
    return lambda: call(next(turn))


def _without_kernels(store: KVStore) -> KVStore:
    plain = KVStore.__new__(KVStore)
    plain.__dict__.update(store.__dict__)
    plain.moves = None
    return plain


def prefix_rows() -> Iterator[Row]:
    """A prefix of 16 tokens: one launch, against an empty one, and against a copy for each layer and plane."""
    words = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    store = KVStore(1024, BLOCK_SIZE, 0, SHAPE, "layer_major", device="cuda")
    turn = itertools.cycle((i, i + 512) for i in range(512))

    def prefix() -> None:
        store.copy_prefix([3], [700], 16)

    def per_layer() -> None:
        source, target = next(turn)
        for layer in range(SHAPE.layers):
            store.keys(layer)[target].copy_(store.keys(layer)[source])
            store.values(layer)[target].copy_(store.values(layer)[source])

    empty = partial(_empty[(1,)], words)
    ours, launch = in_turn_us([prefix, empty], repeats=400)
    yield Row("copy_prefix of 16 tokens, call to call", "us", ours, launch, "empty launch", 1.2, False)
    on_device = device_us([partial(store.copy_prefix, [i], [i + 512], 16) for i in range(64)])
    yield Row("copy_prefix of 16 tokens, on the device", "us", on_device, device_us([empty] * 64), "empty kernel")
    flat = [torch.zeros(BLOCK_BYTES // 8, dtype=torch.int64, device=DEVICE) for _ in range(128)]
    same = device_us([partial(flat[i].copy_, flat[i + 64]) for i in range(64)])
    yield Row("copy_prefix of 16 tokens, on the device", "us", on_device, same, "memcpy of the same bytes", None, False)
    yield Row("a copy for each layer and plane, 16 tokens", "us", host_us(per_layer, repeats=5))


def row_rows() -> Iterator[Row]:
    """Scatter, gather and stamps."""
    reading = read_gbs(4 << 30)
    yield Row("read of 4 GiB", "GB/s", reading)
    tokens = 8192
    for layout in LAYOUTS:
        store = KVStore(2048, BLOCK_SIZE, 0, SHAPE, layout, device="cuda")
        moves = store.moves
        assert moves is not None
        slots = torch.randperm(2048 * BLOCK_SIZE, device=DEVICE)
        keys, values = torch.randn(2, tokens, SHAPE.heads, SHAPE.head_dim, device=DEVICE).bfloat16()
        parts = [slots[i * tokens : (i + 1) * tokens].clone() for i in range(4)]
        moved = 2 * 2 * tokens * SHAPE.heads * SHAPE.head_dim * SHAPE.item_bytes
        calls: list[Call] = [partial(store.store, layer, part, keys, values) for layer in range(8) for part in parts]
        ceiling = memcpy_gbs(moved // 2, 8)
        yield Row(
            f"store, {tokens} tokens, {layout}", "GB/s", gbs(moved, device_us(calls)), ceiling, "memcpy, same bytes"
        )
        calls = [partial(store.load, layer, part) for layer in range(8) for part in parts]
        yield Row(
            f"load, {tokens} tokens, {layout}", "GB/s", gbs(moved, device_us(calls)), ceiling, "memcpy, same bytes"
        )
        where = torch.arange(2048 * BLOCK_SIZE, device=DEVICE)
        size = float(store.memory_bytes)
        filled = gbs(size, device_us([partial(moves.stamp, where, where)], repeats=5))
        yield Row(f"stamp, {layout}", "GB/s", filled)
        wrong = stamp_verify(moves.rows, moves.layers, where, where)
        assert not wrong.any()
        verified = gbs(size, device_us([partial(moves.verify, where, where)], repeats=5))
        yield Row(f"verify, {layout}", "GB/s", verified, reading, "read of 4 GiB", 0.9)
        del store, moves
        torch.cuda.empty_cache()


def swap_rows(blocks: int = 128) -> Iterator[Row]:
    """Swaps of scattered blocks, against memcpy between a device tensor and pinned memory."""
    size = blocks * BLOCK_BYTES
    device, host = (
        torch.zeros(size, dtype=torch.uint8, device=DEVICE),
        torch.zeros(size, dtype=torch.uint8).pin_memory(),
    )
    out = gbs(size, host_us(lambda: host.copy_(device, non_blocking=True), repeats=3))
    back = gbs(size, host_us(lambda: device.copy_(host, non_blocking=True), repeats=3))
    store = KVStore(4 * blocks, BLOCK_SIZE, blocks, SHAPE, "layer_major", device="cuda")
    pairs = [(block, i) for i, block in enumerate(torch.randperm(4 * blocks).tolist()[:blocks])]
    pairs_back = [(host_block, block) for block, host_block in pairs]
    ours_out = gbs(size, host_us(lambda: store.swap_out(pairs), repeats=3))
    ours_back = gbs(size, host_us(lambda: store.swap_in(pairs_back), repeats=3))
    yield Row(f"swap_out, {blocks} blocks", "GB/s", ours_out, out, "memcpy to pinned memory")
    yield Row(f"swap_in, {blocks} blocks", "GB/s", ours_back, back, "memcpy from pinned memory")


def graph_rows() -> Iterator[Row]:
    """Blocks for 256 requests on the device, by graph replays."""
    stack = BlockStack(1 << 16, "cuda")
    wanted = torch.ones(REQUESTS, dtype=torch.int32, device=DEVICE)
    taken, status = torch.zeros(REQUESTS, 1, dtype=torch.int32, device=DEVICE), torch.zeros_like(wanted)
    empty = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    refill = partial(stack.top.fill_, 1 << 16)
    call = partial(acquire, stack.stack, stack.top, wanted, taken, status)
    one = device_us([call], repeats=200)
    nothing = device_us([partial(_empty[(1,)], empty)], repeats=200)
    refill()
    yield Row(f"acquire for {REQUESTS} requests, a replay", "us", one, 10.0, "goal", 1.0, False)
    yield Row("an empty kernel, a replay", "us", nothing)
    graphs = DecodeGraphs(REQUESTS, 64, 1 << 14, BLOCK_SIZE, "cuda")
    for row in range(REQUESTS):
        graphs.admit(row, [row + 1] * (row % 32 + 1))
    graphs.begin_capture(REQUESTS)
    graphs.end_capture()
    rows = list(range(REQUESTS))
    yield Row(
        f"a decode step of {REQUESTS} rows, replayed from Python",
        "us",
        host_us(lambda: graphs.replay(REQUESTS, rows, rows)),
    )


def machines() -> Iterator[tuple[str, str, Factory, int]]:
    """What runs on the device: contract, name, factory and steps. Last a store of more than 2**32 words."""
    for contract, targets in BUILT_IN.items():
        for name in targets:
            if name == "reference" or name in ENGINES:
                continue
            try:
                target = on_device(resolve(contract, name), "cuda")
            except UsageError:  # it keeps nothing on a device
                continue
            yield contract, target.name, target.factory, MACHINE_STEPS
    far = partial(FarStore, least_bytes=FAR_BYTES, device="cuda")
    yield "kv_store", f"far apart in {FAR_BYTES >> 30} GiB", far, FAR_STEPS
    narrow = partial(NarrowOffsets, bits=32, least_bytes=FAR_BYTES, device="cuda")
    yield "kv_store", "the same, planted: offsets in 32 bits", narrow, FAR_STEPS


def figures() -> Iterator[str]:
    """Lines of the table of figures."""
    yield FIGURES_SAY
    yield "| figure | measured | ceiling | ratio | goal |"
    yield "|---|---|---|---|---|"
    for rows in (copy_rows, prefix_rows, row_rows, swap_rows, graph_rows):
        for row in rows():
            yield _line(row)


def sanitizers() -> Iterator[str]:
    """Lines of the table of sanitizers."""
    yield SANITIZERS_SAY
    yield "| tool | found of what is planted | tests passed | errors in them |"
    yield "|---|---|---|---|"
    for tool in sanitized():
        yield f"| {' | '.join(tool)} |"


def machine_runs() -> Iterator[str]:
    """Lines of the table of machines."""
    runs = list(machines())
    held = {contract for contract, *_ in runs}
    bare = [contract for contract in BUILT_IN if contract not in held]
    yield f"Random episodes in lockstep with the reference.\n{', '.join(bare)} keep nothing on a device."
    yield ""
    yield "| machine | target | steps | steps/s | verdict |"
    yield "|---|---|---|---|---|"
    for contract, name, factory, steps in runs:
        with Watchdog(60.0).watching() as watchdog:
            done = random_walk(
                model_of(contract), factory, seed=11, watchdog=watchdog, steps=steps, seconds=MACHINE_SECONDS
            )
        verdict = f"violates {done.failure.law}" if done.failure else "holds"
        yield f"| {contract} | {name} | {done.steps:,} | {done.steps / done.seconds:,.0f} | {verdict} |"


PARTS = {"Figures": figures, "Sanitizers": sanitizers, "Machines": machine_runs}


def report(old: str, name: str) -> Iterator[str]:
    """The page after every line of this part, which is written anew; all others stay as they stand in the old one."""
    parts = dict.fromkeys(PARTS, "") | {part.partition("\n")[0]: part.strip() for part in old.split("\n## ")[1:]}
    card, today = torch.cuda.get_device_name(), datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = [name, "", f"{today}: {card}, torch {torch.__version__}, Triton {triton.__version__}.", ""]
    for line in PARTS[name]():
        lines.append(line)
        parts[name] = "\n".join(lines)
        print(line, flush=True)
        yield "# On a GPU\n\nWritten by `make gpu`.\n" + "".join(f"\n## {part}\n" for part in parts.values() if part)


def _line(row: Row) -> str:
    measured = f"{row.ours:,.4g} {row.unit}"
    if row.ceiling is None:
        return f"| {row.figure} | {measured} | | | |"
    ratio = row.ours / row.ceiling
    goal = ""
    if row.goal is not None:
        met = ratio >= row.goal if row.more else ratio <= row.goal
        goal = f"{'>=' if row.more else '<='} {row.goal:g}, {'met' if met else 'missed'}"
    return f"| {row.figure} | {measured} | {row.ceiling:,.4g} {row.unit}, {row.of} | {ratio:.4g} | {goal} |"


def main() -> None:
    """Writes the page to the file named, docs/gpu.md if none is; only the parts named, if any are."""
    if not torch.cuda.is_available():
        sys.exit("kvlockstep.gpu_report: no CUDA device")
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/gpu.md")
    names = sys.argv[2:] or list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        sys.exit(f"kvlockstep.gpu_report: no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    for name in names:
        for page in report(path.read_text() if path.exists() else "", name):
            path.write_text(page)
        print(f"{name} written to {path}")


if __name__ == "__main__":
    main()
