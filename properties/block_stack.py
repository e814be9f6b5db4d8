"""Laws of block_stack, over the state that the stack shows (`View`) and what its results so far imply (`Held`)."""

from __future__ import annotations

from typing import NamedTuple

from kvlockstep.properties.law import EVERYWHERE, Refused, Step, agree, counted, law, laws_of


class View(NamedTuple):
    """`free`: the free blocks, bottom of the stack first."""

    free: list[int]
    num_free: int


class Held(NamedTuple):
    """By the results so far: the blocks that are held, those ever returned, and True during a capture."""

    blocks: frozenset[int]
    returned: frozenset[int]
    capturing: bool
    total: int


@law("block_stack", answers=("Megatron-LM#6091",))
def atomicity(step: Step[View, Held]) -> str | None:
    """A refused operation changes nothing; a release pushes all of its blocks or none."""
    if isinstance(step.outcome, Refused) and step.before != step.after:
        return f"the operation was refused, but the stack went from {step.before.free} to {step.after.free}"
    return None


@law("block_stack", answers=("seed 003: release pushes whatever it is given", "sglang#13501", "LMCache#987"))
def no_double_free(step: Step[View, Held]) -> str | None:
    """Only held blocks can be released, each once."""
    if step.op.name != "release" or isinstance(step.outcome, Refused):
        return None
    given = step.op.args["blocks"]
    for i, block in enumerate(given):
        if block not in step.held_before.blocks or block in given[:i]:
            return f"release accepted block {block}, which was not held"
    return None


@law("block_stack", answers=("seed 003: a double release hands a block out twice", "vllm#42571"))
def no_aliasing(step: Step[View, Held]) -> str | None:
    """No block is given to two holders."""
    if step.op.name != "acquire" or isinstance(step.outcome, Refused):
        return None
    for i, block in enumerate(step.outcome):
        if block in step.held_before.blocks or block in step.outcome[:i]:
            return f"acquire handed out block {block}, which was held"
    return None


@law("block_stack", answers=("seed 003: a negative acquire raises the free count", "xllm#829"))
def accounting(step: Step[View, Held]) -> str | None:
    """num_free is the number of free blocks; acquire(n) lowers it by n, release raises it by the blocks given."""
    view, before = step.after, step.before
    if view.num_free != len(view.free):
        free = len(view.free)
        return f"num_free={view.num_free}, but {counted(free, 'block')} {agree(free, 'are')} on the stack"
    if isinstance(step.outcome, Refused):
        return None
    match step.op.name:
        case "acquire":
            n = step.op.args["n"]
            if len(step.outcome) != n or view.num_free != before.num_free - n:
                return (
                    f"acquire({n}) handed out {counted(len(step.outcome), 'block')}, num_free went to {view.num_free}"
                )
        case "release":
            n = len(step.op.args["blocks"])
            if view.num_free != before.num_free + n:
                return f"release of {counted(n, 'block')} took num_free from {before.num_free} to {view.num_free}"
    return None


@law("block_stack", answers=("kvcached#401", "dynamo#6536", "seed 003: release ignores what it cannot hold"))
def conservation(step: Step[View, Held]) -> str | None:
    """Free blocks and held blocks are disjoint, and together they are the blocks of the stack, each once."""
    free = step.after.free
    held = step.held.blocks
    for block in range(step.held.total):
        times = free.count(block) + (block in held)
        if times != 1:
            return f"block {block} is {'neither free nor held' if times == 0 else 'free or held more than once'}"
    foreign = [block for block in free if not 0 <= block < step.held.total]
    return f"block {foreign[0]} is free, but does not exist" if foreign else None


@law("block_stack", answers=("seed 003",))
def structure(step: Step[View, Held]) -> str | None:
    """acquire takes the top of the stack and release pushes in order: the last released block goes first."""
    before, after = step.before.free, step.after.free
    wanted = before
    if not isinstance(step.outcome, Refused):
        match step.op.name:
            case "acquire":
                rest = len(before) - len(step.outcome)
                if list(step.outcome) != before[rest:]:
                    return f"acquire handed out {step.outcome}, but the top of the stack was {before[rest:]}"
                wanted = before[:rest]
            case "release":
                wanted = [*before, *step.op.args["blocks"]]
    return None if after == wanted else f"the stack is {after} after {step.op}, not {wanted}"


@law("block_stack", answers=("llama.cpp#10873",))
def admission_honesty(step: Step[View, Held]) -> str | None:
    """acquire is refused for lack of blocks only if fewer blocks are free than it asks for."""
    if step.op.name == "acquire" and step.outcome == Refused("OutOfSlots"):
        n = step.op.args["n"]
        if n <= len(step.before.free):
            return f"acquire({n}) was refused with {counted(len(step.before.free), 'block')} free"
    return None


@law("block_stack", answers=("seed 003: acquire and release between captures", "ik_llama.cpp#2136"))
def graph_contract(step: Step[View, Held]) -> str | None:
    """acquire, release and a second begin_capture are refused as CaptureActive during a capture, and only then."""
    capturing = step.held_before.capturing
    active = step.outcome == Refused("CaptureActive")
    if step.op.name in ("acquire", "release", "begin_capture") and active != capturing:
        return f"{step.op.name} {'was refused outside of' if active else 'was not refused during'} a capture"
    if step.op.name == "end_capture" and isinstance(step.outcome, Refused) == capturing:
        return f"end_capture was {'refused' if capturing else 'accepted without a capture'}"
    return None


LAWS = (*laws_of(globals()), *EVERYWHERE)
