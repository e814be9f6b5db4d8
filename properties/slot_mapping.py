"""Laws of slot_mapping, over the rows that kernels see (`View`) and what the calls so far imply (`Held`)."""

from __future__ import annotations

from typing import NamedTuple

from kvlockstep.properties.law import EVERYWHERE, Refused, Step, law, laws_of
from kvlockstep.reference.slot_mapping.contract import NULL_BLOCK, PAD_SLOT
from kvlockstep.reference.slot_mapping.mapping import slot_offset


class View(NamedTuple):
    """`rows` has the blocks of each row as of the last commit."""

    rows: list[list[int]]


class Held(NamedTuple):
    """By the calls so far: `rows` on the host, `committed` ones, and (ranks, rank, interleave) of the worker.

    Rows have at most `width` blocks of `block_size` tokens; the buffer has `tokens` slots.
    """

    rows: tuple[tuple[int, ...], ...]
    committed: tuple[tuple[int, ...], ...]
    shard: tuple[int, int, int]
    width: int
    block_size: int
    tokens: int


def slot_of(held: Held, row: int, position: int) -> int:
    """The slot of a position of a committed row, found by counting; PAD_SLOT if another worker keeps it."""
    ranks, rank, interleave = held.shard
    covers = held.block_size * ranks
    offset = slot_offset(position % covers, ranks, rank, interleave)
    return PAD_SLOT if offset is None else held.committed[row][position // covers] * held.block_size + offset


@law("slot_mapping", answers=("vllm#43810",))
def slot_mapping(step: Step[View, Held]) -> str | None:
    """Each token of a batch has the slot of its position in the committed row of its request."""
    if step.op.name != "slots" or isinstance(step.outcome, Refused):
        return None
    batch, starts, positions = (step.op.args[name] for name in ("batch", "starts", "positions"))
    for row, start, stop in zip(batch, starts, starts[1:], strict=False):
        for token in range(start, stop):
            wanted = slot_of(step.held, row, positions[token])
            if step.outcome[token] != wanted:
                where = f"position {positions[token]} of row {row}"
                return f"token {token}, {where}, was mapped to slot {step.outcome[token]}, not {wanted}"
    return None


@law("slot_mapping", answers=("vllm#43810", "sglang#13501"))
def padding(step: Step[View, Held]) -> str | None:
    """Behind the tokens of a batch every slot is padding, and behind its rows every block is the null block."""
    if isinstance(step.outcome, Refused):
        return None
    args = step.op.args
    if step.op.name == "slots":
        tail = step.outcome[len(args["positions"]) :]
        wrong = next((i for i, slot in enumerate(tail) if slot != PAD_SLOT), None)
        if wrong is not None:
            return f"place {len(args['positions']) + wrong} is behind the batch and has slot {tail[wrong]}"
    if step.op.name == "gather":
        for row in range(len(args["batch"]), args["padded"]):
            if any(block != NULL_BLOCK for block in step.outcome[row]):
                return f"row {row} is behind the batch and has blocks {step.outcome[row]}"
    return None


@law("slot_mapping", answers=("FastDeploy#5544",))
def gather_exact(step: Step[View, Held]) -> str | None:
    """The table of a forward has the committed blocks of each request of the batch, in the order of the batch."""
    if step.op.name != "gather" or isinstance(step.outcome, Refused):
        return None
    for place, row in enumerate(step.op.args["batch"]):
        if tuple(step.outcome[place]) != step.held.committed[row]:
            wanted = list(step.held.committed[row])
            return f"row {place} of the batch is request row {row} and has blocks {step.outcome[place]}, not {wanted}"
    return None


@law("slot_mapping", answers=("vllm#43810",))
def atomicity(step: Step[View, Held]) -> str | None:
    """Only a commit changes what kernels see."""
    if (isinstance(step.outcome, Refused) or step.op.name != "commit") and step.before != step.after:
        return f"{step.op.name} is no commit, but rows changed that kernels read"
    return None


@law("slot_mapping", answers=("vllm#13418",))
def structure(step: Step[View, Held]) -> str | None:
    """What kernels see of a row is what the calls before the last commit have made of it."""
    for row, (blocks, wanted) in enumerate(zip(step.after.rows, step.held.committed, strict=True)):
        if tuple(blocks) != wanted:
            return f"row {row} has blocks {blocks} after {step.op.name}, not {list(wanted)}"
    return None


LAWS = (*laws_of(globals()), *EVERYWHERE)
