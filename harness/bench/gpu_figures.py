"""Figures of the KV kernels on this card, with the ceilings that were measured beside them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from kvlockstep.bench.gpu_timing import DEVICE, Call, device_us, gbs, host_us, in_turn_us, memcpy_gbs, read_gbs
from kvlockstep.core.markdown import table_head, table_row
from kvlockstep.impl.block_stack import BlockStack
from kvlockstep.impl.decode_graphs import DecodeGraphs
from kvlockstep.impl.kernels import acquire, stamp_verify
from kvlockstep.impl.kv_store import KVStore
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv_store import LAYOUTS

SHAPE = KVShape(32, 8, 128, "bfloat16")
BLOCK_SIZE = 16
BLOCK_BYTES = BLOCK_SIZE * SHAPE.token_bytes
PAIRS = (64, 256, 2048)
REQUESTS = 256
FIGURES_SAY = f"""\
KV of {SHAPE.layers} layers x {SHAPE.heads} heads x {SHAPE.head_dim} {SHAPE.dtype}, blocks of {BLOCK_SIZE} tokens.
Device times are medians of graph replays, in turn over blocks that no cache holds; bytes count as read and as written.
Every ceiling was measured in the same run. The blocks of a copy are scattered unless the figure says neighbours. For
"its reads, then its writes" one kernel reads the same blocks and another writes them. So the memory never switches
between reads and writes.
"""


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


def figures() -> Iterator[str]:
    """Lines of the table of figures."""
    yield FIGURES_SAY
    yield from table_head("figure", "measured", "ceiling", "ratio", "goal")
    for rows in (copy_rows, prefix_rows, row_rows, swap_rows, graph_rows):
        for row in rows():
            yield _line(row)


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
    words, plane, block = moves.device_blocks
    size, us = 512, 0.0
    chunks, never = moves.block_words // size, -(1 << 62) - 12345
    for target in (0, 1):
        calls = [
            partial(
                _half_copy[(len(pairs) * moves.plane_count * chunks,)],
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
            kernel = device_us([partial(moves.within.many, each) for each in sent])
            halves = halves_gbs(store, sent)
            sent = [torch.tensor(chosen, device=DEVICE) for chosen in copies(pairs, blocks, scattered=False)]
            straight = device_us([partial(moves.within.many, each) for each in sent])
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


def _line(row: Row) -> str:
    measured = f"{row.ours:,.4g} {row.unit}"
    if row.ceiling is None:
        return table_row(row.figure, measured, "", "", "")
    ratio = row.ours / row.ceiling
    goal = ""
    if row.goal is not None:
        met = ratio >= row.goal if row.more else ratio <= row.goal
        goal = f"{'>=' if row.more else '<='} {row.goal:g}, {'met' if met else 'missed'}"
    return table_row(row.figure, measured, f"{row.ceiling:,.4g} {row.unit}, {row.of}", f"{ratio:.4g}", goal)
