"""Laws of kv_store, over its content (`View`) and its geometry (`Held`, which never changes)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvlockstep.properties.kv_write import rows as numbers
from kvlockstep.properties.law import EVERYWHERE, Refused, Step, agree, counted, law, laws_of
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv_store.contract import PAD_SLOT
from kvlockstep.reference.kv_store.quantising import quantised
from kvlockstep.reference.kv_write.geometry import Geometry

Row = list[int]
Rows = list[Row]
Place = tuple[str, int]

SPECIAL_BITS = {
    "float32": (0x7FC00001, 0xFF800001, 0x80000000, 1, 0),
    "bfloat16": (0x7FC1, 0xFF81, 0x8000, 1, 0),
    "float16": (0x7E01, 0xFC01, 0x8000, 1, 0),
    "float8_e4m3fn": (0x7F, 0xFF, 0x80, 1, 0),
    "int8": (0x7F, 0xFF, 0x80, 1, 0),
}
TOO_WIDE, TOO_SHORT, NEGATIVE = -1, -2, -3
READS = ("gather", "gather_host", "scales", "scales_host")
PLANES = ("K", "V", "scales of K", "scales of V")


class View(NamedTuple):
    """`device` and `host` have the rows of every slot for each layer: for each of PLANES, of which the first two are
    all there is without scales. `strays` are the bytes that changed beside all blocks.
    """

    device: list[tuple[Rows, ...]]
    host: list[tuple[Rows, ...]]
    memory_bytes: int
    strays: int = 0


class Held(NamedTuple):
    """`blocks` on the device and `host_blocks` on the host, of `block_size` slots with KV of `shape`."""

    blocks: int
    block_size: int
    host_blocks: int
    shape: KVShape


def row_of(stamp: int, layer: int, plane: int, shape: KVShape) -> Row:
    """Returns the row of a stamp as it is given, different in every plane.

    Where rows are kept as they are, every third one has NaNs, zeros and denormals; what is quantised are numbers of
    every kind. A negative stamp is a malformed row.
    """
    width, wide = shape.heads * shape.head_dim, 256**shape.given_bytes
    if stamp < 0:
        return {TOO_WIDE: [wide] * width, TOO_SHORT: [0] * (width - 1), NEGATIVE: [-1] * width}[stamp]
    if shape.given:
        dim = shape.head_dim
        geometry = Geometry(1, 1, 1, shape.heads, dim, dim, shape.given, shape.dtype, scale="row")
        return numbers.row_of(stamp, 2 * layer + plane, geometry)
    seed = stamp + 3 * layer + 7 * plane
    if stamp % 3 == 0:
        special = SPECIAL_BITS[shape.dtype]
        return [special[(seed + i) % len(special)] for i in range(width)]
    return [(seed * 0x9E3779B1 + i * 0x85EBCA77 + 0x01010101 * plane + 1) % wide for i in range(width)]


def kept_rows(stamp: int, layer: int, shape: KVShape) -> list[Row]:
    """What a slot keeps of a stamp in one layer: a row for each plane."""
    given = [row_of(stamp, layer, plane, shape) for plane in (0, 1)]
    if not shape.given:
        return given
    coded = [quantised(row, shape) for row in given]
    return [*(codes for codes, _ in coded), *(scales for _, scales in coded)]


def pairs_of(step: Step[View, Held]) -> list[tuple[Place, Place]]:
    """The slots that a copy or swap reads and writes, as (side, slot)."""
    op, size = step.op, step.held.block_size
    if op.name == "copy_prefix":
        tokens = op.args["tokens"]
        tables = op.args["source"], op.args["target"]
        source, target = ([("device", b * size + i) for b in table for i in range(size)][:tokens] for table in tables)
        return list(zip(source, target, strict=False))
    if op.name == "copy_rows":
        return [(("device", source), ("device", target)) for source, target in op.args["pairs"]]
    origin, goal = {"copy_blocks": ("device", "device"), "swap_out": ("device", "host"), "swap_in": ("host", "device")}[
        op.name
    ]
    return [((origin, s * size + i), (goal, t * size + i)) for s, t in op.args["pairs"] for i in range(size)]


def written(step: Step[View, Held]) -> dict[tuple[str, int, int, int], Row]:
    """Rows that an accepted operation writes, by side, layer, plane and slot."""
    op, shape = step.op, step.held.shape
    if isinstance(step.outcome, Refused):
        return {}
    if op.name == "write":
        layers = range(shape.layers) if op.args["layer"] is None else [op.args["layer"]]
        return {
            ("device", layer, plane, slot): row
            for layer in layers
            for slot, stamp in zip(op.args["slots"], op.args["stamps"], strict=True)
            if slot != PAD_SLOT
            for plane, row in enumerate(kept_rows(stamp, layer, shape))
        }
    if op.name in ("copy_prefix", "copy_blocks", "copy_rows", "swap_out", "swap_in"):
        return {
            (goal, layer, plane, target): rows[source]
            for (origin, source), (goal, target) in pairs_of(step)
            for layer in range(shape.layers)
            for plane, rows in enumerate(getattr(step.before, origin)[layer])
        }
    return {}


def ill_formed(op: Any, held: Held) -> str | None:
    """The error that the arguments of an operation call for, if any."""
    slots, host_slots = held.blocks * held.block_size, held.host_blocks * held.block_size
    args = op.args
    match op.name:
        case "write":
            real = [slot for slot in args["slots"] if slot != PAD_SLOT]
            bad_layer = args["layer"] is not None and not 0 <= args["layer"] < held.shape.layers
            bad_rows = len(args["stamps"]) != len(args["slots"]) or min(args["stamps"], default=0) < 0
            bad = bad_layer or bad_rows or len(set(real)) < len(real)
            return "UnknownSlot" if _outside(real, slots) else "InvalidArgument" if bad else None
        case "gather" | "gather_host" | "scales" | "scales_host":
            if not 0 <= args["layer"] < held.shape.layers:
                return "InvalidArgument"
            return "UnknownSlot" if _outside(args["slots"], host_slots if "host" in op.name else slots) else None
        case "copy_rows":
            return _bad_pairs([s for s, _ in args["pairs"]], slots, [t for _, t in args["pairs"]], slots)
        case "copy_prefix":
            needed = -(-args["tokens"] // held.block_size)
            if args["tokens"] < 0 or needed > min(len(args["source"]), len(args["target"])):
                return "InvalidArgument"
            return _bad_pairs(args["source"][:needed], held.blocks, args["target"][:needed], held.blocks)
        case "copy_blocks" | "swap_out" | "swap_in":
            sources, targets = [s for s, _ in args["pairs"]], [t for _, t in args["pairs"]]
            origin = held.host_blocks if op.name == "swap_in" else held.blocks
            return _bad_pairs(sources, origin, targets, held.host_blocks if op.name == "swap_out" else held.blocks)
        case "blocks_within":
            return "InvalidArgument" if args["budget"] < 0 else None
    return None


def _bad_pairs(sources: Sequence[int], origin: int, targets: Sequence[int], goal: int) -> str | None:
    if _outside(sources, origin) or _outside(targets, goal):
        return "UnknownSlot"
    return "InvalidArgument" if len(set(targets)) < len(targets) else None


def _outside(numbers: Sequence[int], count: int) -> bool:
    return any(not 0 <= number < count for number in numbers)


def _at(view: View, place: tuple[str, int, int, int]) -> Row:
    side, layer, plane, slot = place
    row: Row = getattr(view, side)[layer][plane][slot]
    return row


@law("kv_store", answers=("vllm#42571", "design.md: duplicate destinations have no defined result"))
def no_aliasing(step: Step[View, Held]) -> str | None:
    """A repeated target, an unknown place or a row that does not fit is refused."""
    error = ill_formed(step.op, step.held)
    if error is not None and not isinstance(step.outcome, Refused):
        return f"{step.op.name} was accepted, though its arguments call for {error}"
    return None


@law(
    "kv_store",
    answers=(
        "seed 000: copy_kv leaves layers out",
        "LMCache#4921",
        "LMCache#4463",
        "LMCache-Ascend#270",
        "sglang#38031",
    ),
)
def content_equality(step: Step[View, Held]) -> str | None:
    """Every target holds, bit for bit in all planes, what its source held before or the write was given, scales too."""
    for place, row in written(step).items():
        if _at(step.after, place) != row:
            side, layer, plane, slot = place
            got = _at(step.after, place)
            return f"{step.op.name} left {got} in the {PLANES[plane]} of layer {layer}, {side} slot {slot}, not {row}"
    return None


@law("kv_store", answers=("LMCache#2206", "vllm#43810", "atlas#692", "flashinfer#527"))
def write_isolation(step: Step[View, Held]) -> str | None:
    """Only the targets change: no other slot, layer or plane, nothing behind a prefix, nothing for padding."""
    if step.after.strays:
        return f"{step.op.name} changed {counted(step.after.strays, 'byte')} outside of every block"
    if isinstance(step.outcome, Refused) or step.before == step.after:
        return None
    targets = written(step)
    for side in ("device", "host"):
        for layer, (old, new) in enumerate(zip(getattr(step.before, side), getattr(step.after, side), strict=True)):
            for plane, rows in enumerate(zip(old, new, strict=True)):
                for slot, (a, b) in enumerate(zip(*rows, strict=True)):
                    if a != b and (side, layer, plane, slot) not in targets:
                        return f"{step.op.name} changed the {PLANES[plane]} of layer {layer}, {side} slot {slot}"
    return None


@law("kv_store", answers=("TensorRT-LLM#2699", "FastDeploy#5544", "sglang#26817"))
def gather_exact(step: Step[View, Held]) -> str | None:
    """gather and gather_host return the bits of the slots, in the order asked for; so do the reads of scales."""
    if step.op.name not in READS or isinstance(step.outcome, Refused):
        return None
    side = step.before.host if "host" in step.op.name else step.before.device
    for plane, rows in enumerate(step.outcome, 2 if "scales" in step.op.name else 0):
        for slot, row in zip(step.op.args["slots"], rows, strict=True):
            if row != side[step.op.args["layer"]][plane][slot]:
                return f"{step.op.name} returned {row} for the {PLANES[plane]} of slot {slot}"
    return None


@law("kv_store", answers=("vllm#7577", "sglang#27108"))
def atomicity(step: Step[View, Held]) -> str | None:
    """A refused operation changes nothing; neither does one that only reads."""
    reads = step.op.name in (*READS, "blocks_within")
    if (reads or isinstance(step.outcome, Refused)) and step.before != step.after:
        return f"{step.op.name} {'only reads' if reads else 'was refused'}, but the store changed"
    return None


@law("kv_store", answers=("llama.cpp#10873", "sglang#28544"))
def admission_honesty(step: Step[View, Held]) -> str | None:
    """A well-formed operation succeeds; chains, cycles, padding and copies of a block onto itself are well-formed."""
    if isinstance(step.outcome, Refused) and ill_formed(step.op, step.held) is None:
        return f"{step.op.name} was refused as {step.outcome.error}, though its arguments are well-formed"
    return None


@law("kv_store", answers=("seed 001: pages are counted in floats", "seed 004: every dtype has two bytes"))
def accounting(step: Step[View, Held]) -> str | None:
    """memory_bytes is blocks x block_size x bytes per token; blocks_within is the most that fits a budget."""
    held = step.held
    block_bytes = held.block_size * held.shape.token_bytes
    if step.after.memory_bytes != held.blocks * block_bytes:
        blocks = f"{counted(held.blocks, 'block')} {agree(held.blocks, 'have')} {held.blocks * block_bytes}"
        return f"memory_bytes={step.after.memory_bytes}, but {blocks}"
    if step.op.name == "blocks_within" and not isinstance(step.outcome, Refused):
        budget = step.op.args["budget"]
        if not step.outcome * block_bytes <= budget < (step.outcome + 1) * block_bytes:
            blocks = f"{counted(step.outcome, 'block')} of {counted(block_bytes, 'byte')}"
            return f"blocks_within returned {blocks} for {budget:,}"
    return None


LAWS = (*laws_of(globals()), *EVERYWHERE)
