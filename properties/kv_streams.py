"""Laws of kv_streams, over the state it shows (`View`) and the calls so far in program order (`Held`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvlockstep.properties.law import EVERYWHERE, Refused, Step, law, laws_of


class View(NamedTuple):
    """`free`: the free blocks, next one first. `memory`: the stamp of each block as of the last synchronize."""

    free: list[int]
    memory: list[int]


class Held(NamedTuple):
    """By program order: the held blocks and the content of each block.

    `pending` are the calls since the last synchronize; `reads` are the values that their reads must return; `gates`
    are the streams that are held up.
    """

    blocks: frozenset[int]
    device: tuple[int, ...]
    host: tuple[int, ...]
    reads: tuple[int, ...]
    gates: frozenset[str]
    pending: tuple[str, ...]
    total: int


def moved(origin: Sequence[int], goal: Sequence[int], pairs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """`goal` after its blocks of `pairs` (source, target) were copied from `origin`."""
    content = list(goal)
    for source, target in pairs:
        content[target] = origin[source]
    return tuple(content)


@law("kv_streams", answers=("TensorRT-LLM#10060", "vllm#45704", "sglang-jax#1008", "ATOM#2146"))
def stream_order(step: Step[View, Held]) -> str | None:
    """Each read returns what the calls would have left there in program order, however the streams overlap."""
    if step.op.name != "synchronize" or isinstance(step.outcome, Refused):
        return None
    owed = list(step.held_before.reads)
    if list(step.outcome) != owed:
        return f"the reads since the last synchronize returned {list(step.outcome)}, but in program order {owed}"
    return None


@law("kv_streams", answers=("TensorRT-LLM#9056", "vllm#32255", "sglang#28468"))
def content_equality(step: Step[View, Held]) -> str | None:
    """After a synchronize every block holds what the last call in program order put there."""
    if step.op.name != "synchronize" or isinstance(step.outcome, Refused):
        return None
    for block, (stamp, owed) in enumerate(zip(step.after.memory, step.held_before.device, strict=True)):
        if stamp != owed:
            return f"block {block} holds {stamp}, but in program order {owed}"
    return None


@law("kv_streams", answers=("vllm#42571",))
def no_aliasing(step: Step[View, Held]) -> str | None:
    """alloc gives a block that nobody holds."""
    if step.op.name == "alloc" and not isinstance(step.outcome, Refused) and step.outcome in step.held_before.blocks:
        return f"alloc handed out block {step.outcome}, which was held"
    return None


@law("kv_streams", answers=("Megatron-LM#6091",))
def atomicity(step: Step[View, Held]) -> str | None:
    """A refused operation changes nothing; only alloc and free change which blocks are free."""
    if isinstance(step.outcome, Refused) and step.before != step.after:
        return f"{step.op.name} was refused, but the view changed"
    if step.op.name not in ("alloc", "free") and step.before.free != step.after.free:
        return f"{step.op.name} changed the free blocks from {step.before.free} to {step.after.free}"
    return None


@law("kv_streams", answers=("vllm#32255", "sglang#28468"))
def conservation(step: Step[View, Held]) -> str | None:
    """Every block is either held or free, even while work in flight still reads or writes it."""
    free, held = step.after.free, step.held.blocks
    for block in range(step.held.total):
        if free.count(block) + (block in held) != 1:
            return f"block {block} is {'free or held twice' if block in free else 'neither held nor free'}"
    return None


@law("kv_streams", answers=("llama.cpp#10873",))
def admission_honesty(step: Step[View, Held]) -> str | None:
    """alloc is refused only if no block is free, whatever gates and work in flight there are."""
    if step.op.name == "alloc" and step.outcome == Refused("OutOfSlots") and step.before.free:
        return f"alloc was refused with {step.before.free} free"
    return None


LAWS = (*laws_of(globals()), *EVERYWHERE)
