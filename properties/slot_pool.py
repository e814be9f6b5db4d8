"""Laws of slot_pool, over the state that the pool shows (`View`) and what its results so far imply (`Held`)."""

from __future__ import annotations

from typing import NamedTuple

from kvlockstep.properties.law import EVERYWHERE, Refused, Step, agree, counted, law, laws_of


class View(NamedTuple):
    """`free`: for each slot, True if it is free; `versions`: the version of each slot."""

    free: list[bool]
    versions: list[int]
    free_count: int


# The slots that are held.
Held = frozenset[int]


@law("slot_pool", answers=("seed 000: free and occupy do not look at the mask", "rtp-llm#591"))
def no_double_free(step: Step[View, Held]) -> str | None:
    """Only a held slot can be freed."""
    if step.op.name == "free" and step.outcome is None and step.op.args["slot"] not in step.held_before:
        return f"free accepted slot {step.op.args['slot']}, which was not held"
    return None


@law("slot_pool", answers=("seed 000: occupy toggles",))
def no_aliasing(step: Step[View, Held]) -> str | None:
    """No slot is given to two holders."""
    if step.op.name == "occupy" and step.outcome is None and step.op.args["slot"] in step.held_before:
        return f"occupy accepted slot {step.op.args['slot']}, which was held"
    if step.op.name == "alloc" and step.outcome in step.held_before:
        return f"alloc handed out slot {step.outcome}, which was held"
    return None


@law("slot_pool", answers=("Megatron-LM#6091",))
def atomicity(step: Step[View, Held]) -> str | None:
    """A refused operation changes nothing."""
    if isinstance(step.outcome, Refused) and step.before != step.after:
        return f"the operation was refused, but changed {step.changed}"
    return None


@law("slot_pool", answers=("every refcount-leak row of the field",))
def conservation(step: Step[View, Held]) -> str | None:
    """Free slots and held slots are disjoint, and together they are the pool."""
    for slot, free in enumerate(step.after.free):
        if free == (slot in step.held):
            return f"slot {slot} is {'both free and held' if free else 'neither free nor held'}"
    foreign = sorted(step.held.difference(range(len(step.after.free))))
    return f"slot {foreign[0]} is held, but does not exist" if foreign else None


@law("slot_pool", answers=("xllm#829", "vllm#42571"))
def accounting(step: Step[View, Held]) -> str | None:
    """free_count is the number of free slots."""
    count = sum(step.after.free)
    if step.after.free_count == count:
        return None
    return f"free_count={step.after.free_count}, but {counted(count, 'slot')} {agree(count, 'are')} free"


@law("slot_pool", answers=("seed 000: staleness is detected by version",))
def version_monotone(step: Step[View, Held]) -> str | None:
    """alloc raises the version of the slot it hands out by one; nothing else changes a version."""
    expected = list(step.before.versions)
    if step.op.name == "alloc" and step.outcome in range(len(expected)):
        expected[step.outcome] += 1
    if step.after.versions == expected:
        return None
    slot = next(s for s, version in enumerate(expected) if step.after.versions[s] != version)
    return f"version of slot {slot} went from {step.before.versions[slot]} to {step.after.versions[slot]}"


@law("slot_pool", answers=("llama.cpp#10873",))
def admission_honesty(step: Step[View, Held]) -> str | None:
    """alloc is refused only if no slot is free."""
    if step.op.name == "alloc" and isinstance(step.outcome, Refused) and any(step.before.free):
        return f"alloc was refused with {counted(sum(step.before.free), 'slot')} free"
    return None


LAWS = (*laws_of(globals()), *EVERYWHERE)
